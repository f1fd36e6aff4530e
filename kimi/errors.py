"""Errors that a user can act on.

Every message is one line that names what is wrong, where, what was expected and what was found. The
command line prints it without a traceback; library callers may catch `KimiError` or `ValueError`.
"""


def missing(package: str, extra: str) -> str:
    """The message for an optional package that is not installed: how to install its extra."""
    return (
        f"expected {package}, found it not installed: bash scripts/setup.sh {extra}, or "
        f"pip install -e '.[{extra}]'"
    )


class KimiError(ValueError):
    """Base class of everything this library raises on purpose."""


class ConfigError(KimiError):
    """A field of config.json is missing, unsupported or contradicts another one."""


class CheckpointError(KimiError):
    """A checkpoint file or tensor is missing, unexpected, truncated or of the wrong kind."""


class CodecError(KimiError):
    """Quantised data that cannot be decoded, or cannot be re-encoded without loss."""


class TokenizerError(KimiError):
    """Tokenizer files that do not fit together, or an id outside the vocabulary."""


class ChatError(KimiError):
    """A conversation that the chat format cannot express."""


class InputError(KimiError):
    """A prompt, an option or a path given by the user that cannot be served."""


class RoomError(InputError):
    """A prompt and its answer together exceed the context."""


class NumericsError(KimiError):
    """The model produced NaN or infinity: sampling from it would print garbage."""
