"""What a task is: questions to ask, and how an answer is taken from a response."""

from collections.abc import Callable
from dataclasses import dataclass

from scoring.extraction import Extracted


@dataclass(frozen=True)
class Item:
    """A question as it is put.

    Attributes:
      prompt: the user's message.
      expected: the right answer, see `extraction.right`.
    """

    prompt: str
    expected: str


@dataclass(frozen=True)
class Task:
    """A set of questions.

    Attributes:
      name: of the task.
      source: where its questions are from: the file's name and its SHA-256.
      count: questions.
      ask: question and sample -> how it is put. The same at every call.
      extract: the answer of a response under each reading.
      settings: whatever else decides how a question is put, by name.
    """

    name: str
    source: str
    count: int
    ask: Callable[[int, int], Item]
    extract: Callable[[str], Extracted]
    settings: dict[str, object]
