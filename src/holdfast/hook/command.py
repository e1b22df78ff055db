"""The installed command: `python -I -S …/holdfast/hook/command.py --agent …`, without site-packages and all that comes with them."""

import sys

if __name__ == "__main__":
    sys.path.insert(0, __file__.rpartition("/holdfast/hook/")[0])

    from holdfast.hook.receiver import main

    sys.exit(main(sys.argv[1:]))
