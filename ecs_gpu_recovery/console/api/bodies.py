"""What may be sent to the API. Its description is made from these shapes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictStr, WithJsonSchema, create_model

from ...jobkeys import KEYS, Kind

Text = Annotated[StrictStr, Field(max_length=4096)]
#: A whole number. JSON knows no difference between 15 and 15.0; true and "15" are none.
Whole = Annotated[int, Field(strict=True), WithJsonSchema({"type": "integer"})]


class Body(BaseModel):
    """What is sent. A key that is not known is a mistake."""

    model_config = ConfigDict(extra="forbid")


def _type(kind: Kind) -> Any:
    text = Annotated[StrictStr, Field(max_length=kind.longest)]
    many = Field(max_length=kind.entries)
    types: dict[type, Any] = {
        str: text,
        int: Whole,
        bool: StrictBool,
        list: Annotated[list[text], many],
        dict: Annotated[dict[StrictStr, text], many],
    }
    return types[kind.type]


_FIELDS: dict[str, Any] = {key.name: (_type(key.kind) | None, None) for key in KEYS.values()}
_JobKeys: Any = create_model("JobKeys", __base__=Body, **_FIELDS)


class JobBody(_JobKeys):  # type: ignore[misc]  # it is made when the program runs
    """A job, with the keys of a job file."""

    def given(self) -> dict[str, Any]:
        return dict(self.model_dump(exclude_none=True))


class ReasonBody(Body):
    """Why something is done; it is kept."""

    why: Annotated[StrictStr, Field(max_length=400)] = ""


class NodeBody(ReasonBody):
    """A wish to a node."""

    level: Literal["quick", "1", "2", "3", "4"] = "quick"


class RetryBody(Body):
    """Where an ended job is run again; on the same nodes if none are named."""

    nodes: Annotated[list[Text], Field(max_length=4096)] = Field(default_factory=list)


class AcknowledgeBody(Body):
    """Messages by their keys."""

    keys: Annotated[list[Annotated[StrictStr, Field(max_length=500)]], Field(min_length=1, max_length=200)]


class OrderBody(Body):
    """An order that is pending."""

    record: Annotated[StrictStr, Field(pattern=r"^(job|node)/.{1,128}$")]
    key: Annotated[StrictStr, Field(max_length=400)]
