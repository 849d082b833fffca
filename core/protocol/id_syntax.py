"""Which characters, and how many, ids from other processes may have. Ids are checked before they become parts of key
names, of notifications, or of other messages.
"""

from __future__ import annotations

import re
from typing import Annotated

import msgspec

#: Characters of the id of an engine, a worker, a router, a lease or a request. Baton's have 32 or 12; the ids
#: of other engines contain a request id and more.
MAX_ID_CHARS = 128
#: The id of an engine, a worker, a router or a lease in the name of a key or in a list. It has no colon, brace, space,
#: comma or wildcard, so that it can neither change the key that it is part of, nor match another id, nor be split in a
#: list.
KEY_ID = re.compile(rf"[0-9A-Za-z][0-9A-Za-z._-]{{0,{MAX_ID_CHARS - 1}}}")
#: The same in what is announced; and a name of the same form, which may be empty.
KeyId = Annotated[str, msgspec.Meta(pattern=rf"\A{KEY_ID.pattern}\Z")]
Name = Annotated[str, msgspec.Meta(pattern=rf"\A({KEY_ID.pattern})?\Z")]
#: A model's name, a hash or a group in what is announced.
Text = Annotated[str, msgspec.Meta(max_length=512)]
#: More than any count of a worker, or time of its start, can be.
Count = Annotated[int, msgspec.Meta(ge=0, le=2**40)]
#: The id of an engine or a request in ``kv_transfer_params``, which may come from another engine.
HAND_OFF_ID = re.compile(rf"[0-9A-Za-z_.:-]{{1,{MAX_ID_CHARS}}}")
#: The id of a lease in ``kv_transfer_params`` and in notifications, where it stands between colons: without a
#: notification, the blocks of a lease would be held until its deadline.
LEASE_ID_PATTERN = rf"[0-9A-Za-z_-]{{1,{MAX_ID_CHARS}}}"
#: The name under which an adapter is served: a model name in requests, paths, metrics and lists.
ADAPTER_NAME = re.compile(rf"[0-9A-Za-z][0-9A-Za-z._:/@-]{{0,{MAX_ID_CHARS - 1}}}")
#: A request id that a worker accepts from the header ``x-request-id``.
REQUEST_ID = re.compile(rf"[0-9A-Za-z_-]{{1,{MAX_ID_CHARS}}}")
