"""`python -m holdfast.cli`."""

from holdfast.cli import main

if __name__ == "__main__":  # whoever imports it wants to know where it is
    main()
