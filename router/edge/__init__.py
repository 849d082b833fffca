"""Checks of every HTTP request before its route: ``doors`` checks host names and sites, ``auth`` checks keys.

``tls``          the router's two kinds of TLS
``cors``         which pages of other sites may use ``/v1``
``body_limits``  limits of bodies from operators and routers
``error_pages``  error answers if no route has answered
``files``        serves the files of pages, and says what a page may load
"""
