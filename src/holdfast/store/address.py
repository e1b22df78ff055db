"""The address of a database: the path of a file, or the URL of a database on a server. Passwords in a URL are not shown."""

import re
from urllib.parse import unquote

SCHEMES = ("postgresql", "postgres")

# A password follows the user's name, or is a parameter. PostgreSQL's library reads the first kind up to the first @ and
# allows any character but a slash in it. An @ or / that somebody forgot to write as %40 or %2F counts as part of the
# password too; it cannot be taken for a port, which has no letters.
_BEHIND_USER = re.compile(
    r"\A(?P<scheme>\w+://)(?P<user>[^:/@\[]*):"
    r"(?P<password>[^/@]*(?:@[^/?#@]*)*|(?!\d*(?:[/?,]|\Z))[^@]*)@"
)
_PARAMETER = re.compile(r"(?<=[?&])password=(?P<password>[^&]*)&?")
_KEY_PARAMETER = re.compile(r"(?<=[?&])sslpassword=[^&]*&?")  # of the file with the client's TLS key


def is_url(where: str) -> bool:
    """Whether an address is a URL of a database on a server, rather than the path of a file."""
    return where.partition("://")[0] in SCHEMES


def shown(url: str) -> str:
    """The URL without its passwords, for logs, messages and command lines."""
    without = _BEHIND_USER.sub(lambda found: found["scheme"] + (f"{found['user']}@" if found["user"] else ""), url)
    return _KEY_PARAMETER.sub("", _PARAMETER.sub("", without)).rstrip("?&")


def password(url: str) -> str | None:
    """The user's password in a URL; None if it has none."""
    found = _PARAMETER.search(url) or _BEHIND_USER.search(url)
    return None if found is None else unquote(found["password"])


def has_key_password(url: str) -> bool:
    """Whether a URL has the password of a TLS key in it (`sslpassword`), which no variable can carry in its place."""
    return _KEY_PARAMETER.search(url) is not None
