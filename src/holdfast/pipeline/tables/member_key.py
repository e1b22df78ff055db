"""Which key each member had from when on, by the administration entries of relays."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it that
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType, TimestampType

from holdfast.pipeline.table import Writing, table
from holdfast.pipeline.tables._entry import of_relay, utf8

SCHEMA = StructType(
    [
        StructField("origin", StringType(), nullable=False),
        StructField("log_id", BinaryType(), nullable=False),
        StructField("seq", LongType(), nullable=False),  # of the entry; it holds from the next one on
        StructField("at", TimestampType(), nullable=False),
        StructField("mesh", StringType(), nullable=False),
        StructField("member", StringType(), nullable=False),
        StructField("key", StringType()),  # hex; null where it ends, or where only an invitation vouches for it
        StructField("invite", StringType()),  # the invitation's key, which signed for the member's
        StructField("agreement", StringType()),  # and that signature
    ]
)
ACTIONS = ("create_mesh", "add_member", "join", "rotate_member_key", "revoke_member")
_ACTION = "action STRING, member STRING, key STRING, invite STRING, agreement STRING"


def keys_have_a_source(new_member_key: DataFrame) -> DataFrame:
    """A key has 64 hex digits, and an invitation that vouches for one comes with its signature."""
    is_wrong = (F.length("key") != 64) | (F.col("invite").isNull() != F.col("agreement").isNull())
    return new_member_key.where(is_wrong).select("origin", "seq")


@table(
    key=("origin", "log_id", "seq"),
    schema=SCHEMA,
    writing=Writing.APPEND,
    sort_by=("origin", "seq"),
    invariant=keys_have_a_source,
)
def member_key(new_history: DataFrame) -> DataFrame:
    """One row per change of a member's key: the first one, another one, or none any more."""
    admin = new_history.where(of_relay() & (F.col("kind") == "admin"))
    asked = admin.withColumn("asked", F.from_json(utf8("detail"), _ACTION))
    about_keys = asked.where(F.col("asked.action").isin(*ACTIONS) & F.col("asked.member").isNotNull())
    return about_keys.select(
        *("origin", "log_id", "seq", "at", "mesh"),
        F.col("asked.member").alias("member"),
        *(F.col(f"asked.{name}").alias(name) for name in ("key", "invite", "agreement")),
    )
