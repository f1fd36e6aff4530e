"""Reads JSON objects field by field; errors name the field, its value and what was expected."""

import dataclasses
import json
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from kimi import values
from kimi.errors import ConfigError
from kimi.files import read_bytes
from kimi.values import shown

_REQUIRED = object()
_MAX_INT = 2**31 - 1  # no size or id of a model is larger


class JsonError(ValueError):
    """A text that is not strict JSON; the message is one line with the reason."""


def parse_json(text: str) -> Any:
    """Parses strict JSON.

    Raises JsonError if it is not JSON, an object has a key twice, or a number is not finite.
    """
    try:
        return json.loads(text, object_pairs_hook=_object)
    except JsonError:
        raise
    except RecursionError:
        raise JsonError("not valid JSON: nested too deeply") from None
    except ValueError as e:  # also an integer of more digits than Python converts
        raise JsonError(f"not valid JSON: {str(e).partition(';')[0]}") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        name = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise JsonError(f"{name!r} occurs twice")
    for name, value in pairs:
        for item in value if isinstance(value, list) else (value,):
            if isinstance(item, float) and not math.isfinite(item):
                raise JsonError(f"{name}: expected a finite number, found {item}")
    return data


def load_json(path: str | Path) -> dict[str, Any]:
    """Reads a JSON object. Raises ConfigError if the file is missing or has none."""
    try:
        data = parse_json(read_bytes(path, ConfigError).decode())
    except UnicodeDecodeError as e:
        raise ConfigError(f"{path}: not valid JSON: not UTF-8 at byte {e.start}") from None
    except JsonError as e:
        raise ConfigError(f"{path}: {e}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: expected a JSON object, found {type(data).__name__}")
    return data


class Fields:
    """A JSON object whose fields are read one by one, each with its type and range.

    Args:
      data: the object.
      where: its name in messages, for example `config.json.text_config`.
      parent: the object that contains it.
    """

    def __init__(self, data: Mapping[str, Any], where: str, parent: "Fields | None" = None):
        if not isinstance(data, Mapping):
            raise ConfigError(f"{where}: expected a JSON object, found {shown(data)}")
        self.data = data
        self.where = where
        self._parent = parent
        self._taken: set[str] = set()
        self._unknown: list[str] = [] if parent is None else parent._unknown

    def error(self, name: str, expected: str) -> ConfigError:
        """The error to raise about field `name`."""
        found = shown(self.data[name]) if name in self.data else "nothing"
        return ConfigError(f"{self.where}: {name}: expected {expected}, found {found}")

    def has(self, name: str) -> bool:
        """Whether the field is present and not null."""
        return self.data.get(name) is not None

    def take(self, name: str, default: Any = _REQUIRED) -> Any:
        """The raw value; `default` if the field is absent or null."""
        self._taken.add(name)
        value = self.data.get(name)
        if value is not None:
            return value
        if default is _REQUIRED:
            raise self.error(name, "a value")
        return default

    def integer(
        self, name: str, *, low: int = 1, high: int = _MAX_INT, default: Any = _REQUIRED
    ) -> int:
        """An integer from `low` to `high`."""
        value = self.take(name, default)
        if value is default:
            return value
        return values.integer(f"{self.where}: {name}", value, low, high, ConfigError)

    def number(self, name: str, *, default: Any = _REQUIRED) -> float:
        """A finite number."""
        value = self.take(name, default)
        if value is default:
            return value
        result = values.number(f"{self.where}: {name}", value, ConfigError)
        if not math.isfinite(result):
            raise self.error(name, "a finite number")
        return result

    def positive(self, name: str, *, default: Any = _REQUIRED) -> float:
        """A finite number above zero."""
        value = self.number(name, default=default)
        if value is not default and value <= 0:
            raise self.error(name, "a number above 0")
        return value

    def integers(self, name: str) -> tuple[int, ...]:
        """A list of distinct integers."""
        value = self.take(name)
        valid = isinstance(value, list) and all(type(v) is int for v in value)
        if not valid or len(set(value)) != len(value):
            raise self.error(name, "a list of distinct integers")
        return tuple(value)

    def build[T](self, cls: type[T], default: Mapping[str, Any] | None = None, **given: Any) -> T:
        """A dataclass `cls` whose attributes are the fields of the same names.

        An attribute of type int is an integer of at least 1, one of type float a number above 0.

        Args:
          default: values of fields that may be absent, by name.
          given: values of all other attributes; those with a default in `cls` may be left out.
        """
        read: dict[Any, Callable[..., Any]] = {int: self.integer, float: self.positive}
        for field in dataclasses.fields(cls):  # type: ignore[arg-type]
            if field.name not in given and field.default is dataclasses.MISSING:
                absent = (default or {}).get(field.name, _REQUIRED)
                given[field.name] = read[field.type](field.name, default=absent)
        return cls(**given)

    def fixed(self, name: str, *supported: Any, required: bool = False) -> Any:
        """A field of which this library supports only the listed values.

        An absent field is the first of them, unless it is `required`.
        """
        value = self.take(name, _REQUIRED if required else supported[0])
        if not any(type(value) is type(s) and value == s for s in supported):
            raise self.error(name, f"{' or '.join(map(repr, supported))} (the only supported)")
        return value

    def absent(self, *names: str) -> None:
        """Raises if a field is set that would change the forward pass."""
        for name in names:
            self._taken.add(name)
            if self.has(name):
                raise self.error(name, "no such field (it is not supported)")

    def child(self, name: str) -> "Fields":
        """The object in field `name`."""
        value = self.take(name)
        if not isinstance(value, dict):
            raise self.error(name, "an object")
        return Fields(value, f"{self.where}.{name}", self)

    def finish(self, ignored: Iterable[str]) -> None:
        """Collects the fields that were not read and are not among the `ignored`.

        The outermost object, which finishes last, warns about all of them in one line.
        """
        names = sorted(set(self.data) - self._taken - set(ignored))
        self._unknown += [f"{self.where}.{name}" for name in names]
        if self._parent is None and self._unknown:
            listed = ", ".join(name.removeprefix(f"{self.where}.") for name in self._unknown)
            warnings.warn(
                f"{self.where}: fields that this library does not know are ignored: {listed}",
                stacklevel=3,
            )
