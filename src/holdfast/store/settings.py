"""Settings of a program, from a TOML file and then the environment: type and range are checked, unknown ones refused.

A program's settings are a struct, with a struct for each table; every field has a default. An error names the setting, the
place where it was found, and what to do.
"""

import difflib
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

T = TypeVar("T", bound=msgspec.Struct)


class SettingsInvalid(Exception):
    """An invalid setting: which one, where it was found, and what to do."""


class _Known(msgspec.Struct, frozen=True):
    """The type and default of an existing setting."""

    type: Any
    default: object


class SettingsReader(Generic[T]):
    """Reads the settings of one program."""

    def __init__(self, shape: type[T], environment: str) -> None:
        """`environment` is the prefix of the program's variables; a name follows in capitals, two underscores for a dot."""
        self._shape = shape
        self._environment = environment
        self._known = dict(_known(shape))

    def load(self, file: Path | None, environment: Mapping[str, str]) -> T:
        """The settings of a file, if one is given, overridden by those of the environment."""
        given: dict[str, object] = {}
        if file is not None:
            for name, value in _leaves(_read(file)):
                given[name] = self._checked(name, value, f"{file}: {name}", strict=True)
        for variable in sorted(environment):
            if variable.startswith(self._environment):
                name = variable.removeprefix(self._environment).lower().replace("__", ".")
                given[name] = self._checked(name, environment[variable], variable, strict=False)
        return _built(self._shape, given)

    def _checked(self, name: str, value: object, where: str, *, strict: bool) -> object:
        """The value, converted and checked for type and range; one from the environment is text."""
        known = self._known.get(name)
        if known is None:
            near = difflib.get_close_matches(name, self._known, n=1)
            remedy = f"Did you mean {near[0]}?" if near else f"There are: {', '.join(sorted(self._known))}."
            raise SettingsInvalid(f"{where}: there is no such setting. {remedy}")
        if not strict and isinstance(known.default, tuple) and isinstance(value, str):
            value = [item.strip() for item in value.split(",") if item.strip()]
        try:
            return msgspec.convert(value, known.type, strict=strict)
        except msgspec.ValidationError as error:
            fault = str(error).partition(" - at ")[0].replace("`", "")
            default = msgspec.to_builtins(known.default)
            raise SettingsInvalid(
                f"{where} is {value!r}: {fault[:1].lower()}{fault[1:]}. Correct it, or leave it out for {default!r}."
            ) from error


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsInvalid(f"{file}: the settings cannot be read ({error.strerror}). Correct the path.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsInvalid(f"{file}: this is not TOML ({error}). Correct it there.") from error


def _leaves(table: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _built(shape: type[T], given: Mapping[str, object], prefix: str = "") -> T:
    """Build the struct from checked values; missing ones take their defaults."""
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(shape):
        if _is_table(field.type):
            values[field.name] = _built(field.type, given, f"{prefix}{field.name}.")
        elif prefix + field.name in given:
            values[field.name] = given[prefix + field.name]
    return shape(**values)


def _known(shape: type[msgspec.Struct], prefix: str = "") -> Iterator[tuple[str, _Known]]:
    for field in msgspec.structs.fields(shape):
        if _is_table(field.type):
            yield from _known(field.type, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, _Known(field.type, field.default)


def _is_table(found: Any) -> bool:
    return isinstance(found, type) and issubclass(found, msgspec.Struct)
