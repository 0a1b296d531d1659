"""Train on unequal machines: a group that steps together at the pace its members can hold together."""

from paceline.runtime.members.view import Patience
from paceline.runtime.pace import Pace, StepRecord, join
from paceline.runtime.settings import Settings

__all__ = ["Pace", "Patience", "Settings", "StepRecord", "join"]
