"""Errors of the kernel's foundation."""

from kimi.errors import KimiError


class LayoutError(KimiError):
    """A model that cannot be divided over a mesh, or a weight that its device form cannot hold."""


class PlanError(KimiError):
    """A memory plan over budget, or a schedule that would race, hang or leak a semaphore."""
