"""What a batch does to the turns of agents, by the hook events that devices received.

A turn begins with a prompt. It ends when the agent says that it stopped, when it fails, when its session ends, or with the next prompt.
Events between turns count for none.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it that
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from holdfast.pipeline.table import Writing, table
from holdfast.pipeline.tables._hook import SESSION, hook_events

KINDS = ("hook_received",)
NOTIFIED = "agent-turn-complete"
"""The event by which Codex reports a whole turn; if a hook reported the prompt, it is a second report of that turn."""

TURN = [
    StructField("device", StringType(), nullable=False),  # the origin of its history
    StructField("agent", StringType(), nullable=False),
    StructField("session", StringType(), nullable=False),  # the agent's own id for it
    StructField("n", LongType(), nullable=False),  # from 1 in its session
    StructField("prompt_at", TimestampType()),  # null where only the end was reported
    StructField("stop_at", TimestampType()),  # null while it is open, and where the next prompt ended it
    StructField("tools", LongType(), nullable=False),
    StructField("errors", LongType(), nullable=False),
    StructField("outcome", StringType(), nullable=False),  # complete, interrupted, open
    StructField("began_at", TimestampType(), nullable=False),  # time of the entry of its first event
]
STOP_NAME = StructField("stop_name", StringType())
"""The name of the event with which the agent last ended a turn itself."""

SCHEMA = StructType([*TURN, STOP_NAME])

_ORDER = ("at", "seq")  # positions of a restored log begin again after its fork; its times do not


@table(key=(), schema=SCHEMA, writing=Writing.PASSING, kinds=KINDS)
def turn(old_agent_session: DataFrame, extent: DataFrame, new_history: DataFrame, history: DataFrame) -> DataFrame:
    """One row per turn that this batch began, went on with or ended, as it stands after the batch."""
    events = hook_events(new_history, extent, history)
    return _turns(_told(_placed(_with_what_was_open(events, old_agent_session))))


def _with_what_was_open(events: DataFrame, sessions: DataFrame) -> DataFrame:
    """The events, each with the number of turns before it; an open turn comes as the prompt that began it."""
    touched = events.select(*SESSION).distinct()
    known = sessions.join(touched, on=SESSION, how="left_semi").select(
        *SESSION,
        F.when(F.col("outcome") == "open", F.col("n") - 1).otherwise(F.col("n")).alias("turns"),
        F.col("stop_name").alias("known_stop_name"),
        *("outcome", "prompt_at", "began_at", "tools", "errors"),
    )
    opened = known.where(F.col("outcome") == "open").select(
        *SESSION,
        F.lit(0).cast("bigint").alias("seq"),
        F.col("began_at").alias("at"),
        F.lit("user_prompt_submit").alias("event_type"),
        F.lit("").alias("event_name"),
        F.col("prompt_at").alias("received_at"),
        *("tools", "errors"),
    )
    fresh = events.withColumns({name: F.lit(0).cast("bigint") for name in ("tools", "errors")})
    return fresh.unionByName(opened).join(known.select(*SESSION, "turns", "known_stop_name"), on=SESSION, how="left")


def _placed(events: DataFrame) -> DataFrame:
    """Each event with whether a turn is open before it, and the event with which the agent last ended a turn itself."""
    before = Window.partitionBy(*SESSION).orderBy(*_ORDER).rowsBetween(Window.unboundedPreceding, -1)
    marked = events.withColumn(
        "opens", F.when(_is("user_prompt_submit"), True).when(_is("agent_stop") | _is_cut_off(), False)
    )
    placed = marked.withColumn("is_open", F.coalesce(F.last("opens", ignorenulls=True).over(before), F.lit(False)))
    closing = F.when(_is("agent_stop") & F.col("is_open"), F.col("event_name"))
    named = placed.withColumn("closing", closing).withColumn(
        "stop_before", F.coalesce(F.last("closing", ignorenulls=True).over(before), "known_stop_name")
    )
    is_whole = _is("agent_stop") & ~F.col("is_open") & (F.col("event_name") == NOTIFIED)
    return named.withColumn("is_whole", is_whole & F.coalesce(F.col("stop_before") == NOTIFIED, F.lit(True)))


def _told(placed: DataFrame) -> DataFrame:
    """Each event with its turn and what it adds to it: a beginning, an end, tool calls, errors."""
    so_far = Window.partitionBy(*SESSION).orderBy(*_ORDER).rowsBetween(Window.unboundedPreceding, 0)
    begins = _is("user_prompt_submit") | F.col("is_whole")
    ends = (F.col("is_open") & (_is("agent_stop") | _is_cut_off())) | F.col("is_whole")
    numbered = placed.withColumn(
        "n", F.coalesce("turns", F.lit(0)) + F.sum(begins.cast("bigint")).over(so_far)
    ).withColumn("begins", begins)
    is_error = F.col("is_open") & (_is("error") | _is_failed_tool())
    return numbered.where(begins | F.col("is_open")).select(
        *SESSION,
        *("n", "seq", "at", "begins", "stop_before", "closing"),
        F.when(_is("user_prompt_submit"), F.col("received_at")).alias("prompt_at"),
        F.when(ends, F.col("received_at")).alias("stop_at"),
        F.when(ends, F.when(_is_cut_off(), "interrupted").otherwise("complete")).alias("ending"),
        (F.col("tools") + _one_if(F.col("is_open") & _is("tool_use"))).alias("tools"),
        (F.col("errors") + _one_if(is_error)).alias("errors"),
    )


def _turns(told: DataFrame) -> DataFrame:
    """One row per turn. One that was open when the next prompt came was interrupted, at a time that nobody knows."""
    # A prompt that comes while a turn is open belongs to the turn that it begins.
    turns = told.groupBy(*SESSION, "n").agg(
        F.min("prompt_at").alias("prompt_at"),
        F.min("stop_at").alias("stop_at"),
        F.sum("tools").alias("tools"),
        F.sum("errors").alias("errors"),
        F.min("ending").alias("ending"),
        F.min(F.when(F.col("begins"), F.col("at"))).alias("began_at"),
        F.max_by(F.coalesce("closing", "stop_before"), F.struct(*_ORDER)).alias("stop_name"),
    )
    last = F.max("n").over(Window.partitionBy(*SESSION))
    outcome = F.coalesce("ending", F.when(F.col("n") < last, "interrupted").otherwise("open"))
    return turns.withColumn("outcome", outcome).select(*SCHEMA.fieldNames())


def _one_if(condition: Column) -> Column:
    return F.coalesce(condition, F.lit(False)).cast("bigint")


def _is(event_type: str) -> Column:
    return F.col("event_type") == event_type


def _is_cut_off() -> Column:
    """Whether an event ends a turn that the agent did not end itself."""
    return (_is("error") & (F.col("event_name") == "StopFailure")) | _is("session_end")


def _is_failed_tool() -> Column:
    return _is("tool_done") & (F.col("event_name") == "PostToolUseFailure")
