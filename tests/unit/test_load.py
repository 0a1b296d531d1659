"""Every wrong field at once, each with file, line, given, expected and the nearest right name."""

import time
from pathlib import Path

import pytest

from paceline.catalog import cluster, network, network_names, shipped_catalog
from paceline.errors import InputError, SpecError
from paceline.spec.lines import line_of, locate
from paceline.spec.load import dump, load_cases, load_spec, load_study, parse_spec, read_text
from paceline.spec.network import Network
from paceline.spec.study import Study

STUDIES = sorted((Path(__file__).parents[2] / "examples" / "studies").glob("*.toml"))

WRONG = """\
name = "../etc"
networks = ["resnet5", 3]
frameworks = "pytorch"
devices = [0, 1.5,
           true]
batch = [32]
scaling = "week"
input = []

[[strategy]]
bucket = "25 s"
overlap = "yes"
algoritm = "ring"

[protocol]
width = 2
budget = "1 lightyear"
"""

FOUND = [
    ':1: name: got "../etc", expected letters, digits, dots',
    ":2: networks[1]: got 3, expected text in quotes",
    ":2: networks[0]: got 'resnet5', expected a known network (did you mean 'resnet50'? `paceline networks` lists all;",
    ':3: frameworks: got "pytorch", expected a list in square brackets',
    ":4: devices[0]: got 0, expected at least 1",
    ":4: devices[1]: got 1.5, expected a whole number",
    ":4: devices[2]: got true, expected a whole number",
    ":7: scaling: got \"week\", expected 'weak' or 'strong' (did you mean 'weak'?)",
    ":8: input: got [], expected at least 1 item",
    ":11: strategy[0].bucket: got \"25 s\", expected a size such as '25 MiB'",
    ':12: strategy[0].overlap: got "yes", expected true or false',
    ":13: strategy[0].algoritm: got an unknown field, expected a field of the spec",
    ":16: protocol.width: got 2, expected less than 1",
    ":17: protocol.budget: got \"1 lightyear\", expected a time such as '1.5 ms'",
]


def written(tmp_path, text):
    path = tmp_path / "study.toml"
    path.write_text(text)
    return path


def test_every_problem_is_reported_with_its_line(tmp_path):
    path = written(tmp_path, WRONG)
    with pytest.raises(SpecError) as caught:
        load_study(path, shipped_catalog())
    lines = str(caught.value).splitlines()
    assert lines[0] == f"{path} has {len(FOUND)} problems"
    for line, expected in zip(lines[1:], FOUND, strict=True):
        assert line.strip().startswith(f"{path}{expected}")


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_the_examples_load_and_expand(path):
    study, cases = load_cases(path, shipped_catalog())
    assert study.name == path.stem
    assert cases


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("devices = [65]", ":5: devices: got 65, expected at most 64, which cluster 'local' has"),
        ('clusters = ["nowhere.toml"]', ":5: clusters[0]: got 'nowhere.toml', expected a readable file"),
        ('clusters = ["\\u0000.toml"]', ":5: clusters[0]: got"),
        ('clusters = ["/dev/zero.toml"]', ":5: clusters[0]: got"),
        ("title = 1979-05-27", ':5: title: got {"date": "1979-05-27"}, expected text in quotes'),
        ("devices = [inf]", ":5: devices[0]: got inf, expected a"),
        ("devices = [99999999999999999999]", ":5: devices[0]: got 99999999999999999999, expected at most"),
        ("[protocol]\nlaunches = 9\nmax_launches = 3", ":5: protocol: got"),
        ("[protocol", ":5: syntax: got"),
    ],
)
def test_single_problems(tmp_path, line, words):
    good = 'name = "s"\nnetworks = ["lenet"]\nframeworks = ["pytorch"]\nbatch = [3]\n'
    path = written(tmp_path, good + line + "\n")
    with pytest.raises(SpecError) as caught:
        load_cases(path, shipped_catalog())
    assert f"{path}{words}" in str(caught.value)


def test_bytes_that_are_no_text_name_their_line(tmp_path):
    path = tmp_path / "study.toml"
    path.write_bytes(b'name = "s"\ntitle = "\xff"\n')
    with pytest.raises(SpecError, match=r"study\.toml:2: encoding: got byte 0xff, expected UTF-8 text"):
        load_study(path, shipped_catalog())


@pytest.mark.parametrize("name", ["missing.toml", ".", "/dev/null", "a\0b.toml", "x" * 5000])
def test_what_is_no_file_is_one_clear_error(tmp_path, name):
    with pytest.raises(InputError):
        load_study(tmp_path / name, shipped_catalog())


def test_a_huge_file_is_refused(tmp_path):
    with pytest.raises(InputError, match="larger than"):
        load_study(written(tmp_path, "#" * (5 * 2**20)), shipped_catalog())


def test_deep_nesting_is_refused(tmp_path):
    for depth in (150, 300, 5000):
        with pytest.raises(SpecError):
            load_study(written(tmp_path, "name = " + "[" * depth + "]" * depth), shipped_catalog())


def test_a_long_wrong_list_is_placed_quickly(tmp_path):
    text = "devices = [\n" + "0,\n" * 20_000 + "]\nbatch = 3\n"
    begin = time.process_time()  # what other programs do at the same time does not count
    with pytest.raises(SpecError, match=r":20003: batch: "):
        load_study(written(tmp_path, text), shipped_catalog())
    assert time.process_time() - begin < 10


def test_lines_are_found_behind_values_that_span_lines():
    spanning = 'a = """\nb = 1 # "\n[c]\n"""\nd = [ # ]\n  "]", {e = "["}\n]\n'
    text = spanning + "[[t]]\nf = '#'\n[t.u]\n\"g h\".i = 1\n[[t]]\nf = 2\n"
    found = locate(text)
    assert found == {
        ("a",): 1,
        ("d",): 5,
        ("t", 0): 8,
        ("t", 0, "f"): 9,
        ("t", 0, "u"): 10,
        ("t", 0, "u", "g h", "i"): 11,
        ("t", 1): 12,
        ("t", 1, "f"): 13,
    }
    assert line_of(("d", 1, "e"), found) == 5
    assert line_of(("z",), found) is None


def test_wrong_layers_are_named_by_kind(tmp_path):
    text = 'name = "n"\n[input]\nkind = "image"\nheight = 2\nwidth = 2\n[[layers]]\nname = "a"\nkind = "conv3d"\n'
    with pytest.raises(SpecError) as caught:
        parse_spec(text, Network, "n.toml")
    assert str(caught.value).splitlines()[1:] == [
        "  n.toml:8: layers[0].kind: got \"conv3d\", expected a known kind (did you mean 'conv2d'?)"
    ]


@pytest.mark.parametrize("name", network_names())
def test_networks_round_trip(name):
    assert parse_spec(dump(network(name)), Network, "n.toml") == network(name)


def test_clusters_round_trip():
    found = cluster("mixed-lab")
    assert parse_spec(dump(found), type(found), "c.toml") == found


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_studies_round_trip(path):
    study = load_spec(path, Study)
    assert parse_spec(dump(study), Study, "s.toml") == study


def test_a_file_of_exactly_the_most_bytes_is_read(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text("x" * 10)
    assert read_text(path, most=10) == "x" * 10
    path.write_text("x" * 11)
    with pytest.raises(InputError, match="larger than 10 bytes"):
        read_text(path, most=10)


def test_a_long_value_is_cut_in_an_error(tmp_path):
    text = 'name = "s"\nnetworks = ["lenet"]\nframeworks = ["pytorch"]\nbatch = [8]\ntitle = ["' + "x" * 500 + '"]\n'
    with pytest.raises(SpecError) as error:
        parse_spec(text, Study, "s.toml")
    (problem,) = error.value.problems
    assert (problem.line, problem.field) == (5, "title")
    assert len(problem.given) == 80
    assert problem.given.endswith("...")


@pytest.mark.parametrize("name", [".hidden", "..", "-a", "_a", "a/b", "a b", "", "x" * 101])
def test_a_label_is_the_name_of_a_folder(name):
    """It begins neither as a hidden file nor as an option, and leaves its folder nowhere."""
    text = f'name = "{name}"\nnetworks = ["lenet"]\nframeworks = ["pytorch"]\nbatch = [8]\n'
    with pytest.raises(SpecError, match="name"):
        parse_spec(text, Study, "s.toml")
    assert parse_spec(text.replace(f'"{name}"', '"' + "x" * 100 + '"', 1), Study, "s.toml").name == "x" * 100


def test_problems_come_in_the_order_of_the_file():
    text = 'batch = [0]\nframeworks = 3\nnetworks = []\nname = "/"\n'
    with pytest.raises(SpecError) as error:
        parse_spec(text, Study, "s.toml")
    assert [problem.line for problem in error.value.problems] == [1, 2, 3, 4]


def test_an_unknown_field_is_answered_with_the_nearest_one():
    text = 'name = "s"\nnetworks = ["lenet"]\nframeworks = ["pytorch"]\nbatch = [8]\nscalling = "weak"\n'
    with pytest.raises(SpecError) as error:
        parse_spec(text, Study, "s.toml")
    assert [(problem.line, problem.hint) for problem in error.value.problems] == [(5, "did you mean 'scaling'?")]
