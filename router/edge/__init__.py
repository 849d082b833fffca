"""What happens to every HTTP request before its route: ``doors`` refuses names and pages, ``auth`` checks keys.

``cors``         which pages of other sites may use ``/v1``
``body_limits``  what a body from operators and routers may be made of
``error_pages``  errors where no route has answered
"""
