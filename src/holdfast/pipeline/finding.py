"""The columns of a finding: one thing that is not as the histories say it must be. Every findings table has these and no others."""

from holdfast.pipeline.schema import FLAG, NUMBER, TEXT, TIME, columns, with_optional

COLUMNS = with_optional(
    columns(
        origin=TEXT,  # the history that shows it
        kind=TEXT,  # what is wrong, one word of the table's own list
        key=TEXT,  # which row: the parts of its key joined by "/"
        detail=TEXT,  # a sentence
        seq=NUMBER,  # the entry that shows it, if one does
        at=TIME,  # that entry's time
        is_violation=FLAG,  # False: unexplained, or only worth knowing
    ),
    *("seq", "at"),
)
