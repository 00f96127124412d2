"""`python -m qtool`"""

from qtool.cli import main  # type: ignore[import-not-found]  # installed from cli/

if __name__ == "__main__":
    main(prog_name="qtool")
