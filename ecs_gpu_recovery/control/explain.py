"""How an event is understood, by what it is judged: the deployment's own word, or what can be known without asking."""

from __future__ import annotations

from ..aws.explain import explain_file, explain_text
from .aws_settings import rules_of

__all__ = ["explain_file", "explain_text", "rules_of"]
