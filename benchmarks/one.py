"""One job in a process of its own: JSON in, one line of JSON out."""

if __name__ == "__main__":
    # Workers that are fresh interpreters import this module again, so what it imports would count as theirs.
    import sys

    from benchmarks.measure import main

    main(sys.argv[1])
