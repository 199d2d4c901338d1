"""Runs an experiment, as root, from the root of the repository.

    python3 -m lab                      the experiments, and how long each lasts
    python3 -m lab JOB [OPTION]...      one of them; -h says its options
    python3 -m lab redraw DIR...        summaries and figures of recorded runs, anew; touches nothing else
    python3 -m lab clean                takes down what runs that were killed left
"""

import sys

from lab import job, scope


def main(words):
    if not words or words[0] in ("-h", "--help", "help"):
        print(__doc__)
        print(job.listing())
    elif words[0] == "redraw":
        if not words[1:]:
            sys.exit("lab: redraw needs directories of results, such as lab/results/*-read")
        for directory in words[1:]:
            job.redraw(directory)
    elif words[0] == "clean":
        print(f"abandoned runs that were cleaned up: {scope.clean()}")
    elif words[0] in job.names():
        job.run(words[0], words[1:])
    else:
        sys.exit(f"lab: there is no job {words[0]!r}: {', '.join(job.names())}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except job.Refused as refusal:
        sys.exit(f"lab: {refusal}")
