"""The phases of the draft kernel as code, one function each, named as in `draft.phases`."""
