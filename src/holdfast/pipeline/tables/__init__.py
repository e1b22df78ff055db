"""The tables of the lake, one file each: a file `name.py` holds the table `name`."""
