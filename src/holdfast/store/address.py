"""Where a database is: a file, or a database of a server, by its URL. Secrets in it are not shown."""

import re
from urllib.parse import unquote

SCHEMES = ("postgresql", "postgres")

# A password stands behind the user's name, or among the parameters. PostgreSQL's library reads it up to the first @ and lets
# it have any character but a slash. What somebody forgot to write as %40 or %2F belongs to it, too: no port has letters.
_BEHIND_USER = re.compile(
    r"\A(?P<scheme>\w+://)(?P<user>[^:/@\[]*):"
    r"(?P<password>[^/@]*(?:@[^/?#@]*)*|(?!\d*(?:[/?,]|\Z))[^@]*)@"
)
_PARAMETER = re.compile(r"(?P<mark>[?&])password=(?P<password>[^&]*)&?")


def is_url(where: str) -> bool:
    """Whether this names a database of a server, rather than a file."""
    return where.partition("://")[0] in SCHEMES


def shown(url: str) -> str:
    """The URL without its password, for logs, messages and command lines."""
    without = _BEHIND_USER.sub(lambda found: found["scheme"] + (f"{found['user']}@" if found["user"] else ""), url)
    return _PARAMETER.sub(lambda found: found["mark"], without).rstrip("?&")


def password(url: str) -> str | None:
    """The password in a URL, if it has one."""
    found = _PARAMETER.search(url) or _BEHIND_USER.search(url)
    return None if found is None else unquote(found["password"])
