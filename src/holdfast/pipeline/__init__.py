"""The pipeline: reads the histories of relay and devices with Spark, keeps a lake, and certifies what became of every message."""
