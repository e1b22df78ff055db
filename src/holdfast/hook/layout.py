"""What lies where: the files of agent hooks in a home, and the steps of their database's schema. Receiver and daemon agree on it here."""

DATABASE_NAME = "hooks.db"
SPOOL_NAME = "hooks.spool"
REJECTED_NAME = "hooks.rejected"  # lines of the spool that cannot be read, or that no database would take
LOG_NAME = "hook.log"
SETTINGS_NAME = "hooks.json"

PROGRAM = "hook"
STEPS = (  # of the schema, oldest first
    "hook_outbox",
    "hook_spool",
    "agent_session",
    "hook_digest",
    "agent_given_up",
    "agent_given_up_error",
)
JOURNAL_MODE = "truncate"  # a rollback journal: whatever else may look into the file needs no shared memory

DOCTOR_SESSION = "holdfast-doctor-"  # how the sessions of `hook doctor` begin
