"""What is told before a run begins, once a method."""

from cofair.command.progress import notes_once


def test_notes_are_printed_for_the_first_seed_of_each_method(capsys):
    tell = notes_once()
    for seed in (3, 4):
        tell("contract", seed, ["A first thing.", "A second."])
    tell("own", 3, ["Another."])
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == "contract, seed 3: A first thing. A second.\nown, seed 3: Another.\n"
