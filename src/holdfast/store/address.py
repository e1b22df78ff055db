"""Where a database is: a file, or a database of a server, by its URL. Secrets in it are not shown."""

from urllib.parse import unquote, urlsplit, urlunsplit

SCHEMES = ("postgresql", "postgres")


def is_url(where: str) -> bool:
    """Whether this names a database of a server, rather than a file."""
    return where.partition("://")[0] in SCHEMES


def shown(url: str) -> str:
    """The URL without its password, for logs, messages and command lines."""
    parts = urlsplit(url)
    name, _, host = parts.netloc.rpartition("@")
    user = name.partition(":")[0]
    return urlunsplit(parts._replace(netloc=f"{user}@{host}" if user else host))


def password(url: str) -> str | None:
    """The password in a URL, if it has one."""
    found = urlsplit(url).password
    return None if found is None else unquote(found)
