"""The judge."""
def judge(world):
    return list(world.journal.mistakes)
