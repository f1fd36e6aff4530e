"""Reading a JSON object field by field: every complaint names the field, its value and the rule."""

import json
import math
import os
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from kimi.errors import ConfigError

_REQUIRED = object()


class JsonError(ValueError):
    """A text that is not strict JSON; the message is one line that says why."""


def parse_json(text: str) -> Any:
    """The value that a JSON text holds.

    Raises:
      JsonError: it is not JSON, an object has a key twice, or a number is NaN or infinite.
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
    found = dict(pairs)
    if len(found) < len(pairs):
        name = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise JsonError(f"{name!r} occurs twice")
    for name, value in pairs:
        for one in value if isinstance(value, list) else (value,):
            if isinstance(one, float) and not math.isfinite(one):
                raise JsonError(f"{name}: expected a finite number, found {one}")
    return found


def load_json(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Returns the JSON object in `path`.

    Raises:
      ConfigError: the file is missing, unreadable, not JSON, or not an object.
    """
    path = Path(path)
    try:
        data = parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except OSError as e:
        raise ConfigError(f"{path}: cannot be read: {e.strerror}") from None
    except UnicodeDecodeError as e:
        raise ConfigError(f"{path}: not valid JSON: not UTF-8 at byte {e.start}") from None
    except JsonError as e:
        raise ConfigError(f"{path}: {e}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: expected a JSON object, found {type(data).__name__}")
    return data


class Fields:
    """A JSON object whose fields are taken one by one, each with its type and rule.

    Args:
      data: the object.
      where: how messages call it, for example `config.json: text_config`.
    """

    def __init__(self, data: Mapping[str, Any], where: str):
        self.data = data
        self.where = where
        self._taken: set[str] = set()

    def error(self, name: str, expected: str) -> ConfigError:
        """An error about field `name`, ready to be raised."""
        found = repr(self.data[name]) if name in self.data else "nothing"
        return ConfigError(f"{self.where}: {name}: expected {expected}, found {found}")

    def has(self, name: str) -> bool:
        """Whether the field is there and not null."""
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

    def integer(self, name: str, *, low: int = 1, default: Any = _REQUIRED) -> int:
        """An integer of at least `low`."""
        value = self.take(name, default)
        if value is default:
            return value
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise self.error(name, f"an integer of at least {low}")
        return value

    def number(self, name: str, *, default: Any = _REQUIRED) -> float:
        """A finite number."""
        value = self.take(name, default)
        if value is default:
            return value
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(name, "a number")
        if not math.isfinite(value):
            raise self.error(name, "a finite number")
        return float(value)

    def positive(self, name: str, *, default: Any = _REQUIRED) -> float:
        """A finite number above zero."""
        value = self.number(name, default=default)
        if value is not default and value <= 0:
            raise self.error(name, "a number above 0")
        return value

    def integers(self, name: str) -> tuple[int, ...]:
        """A list of integers without repetition."""
        value = self.take(name)
        good = isinstance(value, list) and all(type(v) is int for v in value)
        if not good or len(set(value)) != len(value):
            raise self.error(name, "a list of distinct integers")
        return tuple(value)

    def fixed(self, name: str, *supported: Any, required: bool = False) -> Any:
        """A field for which this library supports only the values listed.

        An absent field passes unless `required`: the first supported value is then meant.
        """
        value = self.take(name, _REQUIRED if required else supported[0])
        if not any(type(value) is type(s) and value == s for s in supported):
            raise self.error(
                name, " or ".join(repr(s) for s in supported) + " (the only supported)"
            )
        return value

    def absent(self, *names: str) -> None:
        """Fields that would change the forward pass if they were set."""
        for name in names:
            self._taken.add(name)
            if self.has(name):
                raise self.error(name, "no such field (it is not supported)")

    def child(self, name: str) -> "Fields":
        """The object in field `name`."""
        value = self.take(name)
        if not isinstance(value, dict):
            raise self.error(name, "an object")
        return Fields(value, f"{self.where}.{name}")

    def finish(self, ignored: Iterable[str]) -> None:
        """Warns about fields that nobody took and that are not known to be harmless."""
        for name in sorted(set(self.data) - self._taken - set(ignored)):
            warnings.warn(
                f"{self.where}: field {name!r} is not known to this library and is ignored",
                stacklevel=2,
            )
