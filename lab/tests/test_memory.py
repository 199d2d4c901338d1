"""The experiments about memory: sizes, loads, arms, and what samples amount to."""

import tempfile
import tomllib
import unittest
from pathlib import Path

from lab import job, jobs  # noqa: F401
from lab.jobs import memory_harm
from lab.jobs.memory import arms, campaign, database, drawn, samples, stage, story, studied
from lab.jobs.memory.samples import Sample

TABLES = {("small", False): 240 << 20, ("small", True): 240 << 20, ("paper", False): 4064 << 20, ("paper", True): 240 << 20}


def small(load="phases", phase=10):
    return story.make("small", 240 << 20, False, load, phase, 1)


class Story(unittest.TestCase):
    def test_what_is_shared_is_enough_for_both_objectives_and_not_for_both_databases(self):
        for (scale, guest), table in TABLES.items():
            with self.subTest(scale=scale, guest=guest):
                told = story.make(scale, table, guest, "phases", 20, 1)
                a, b = told["roles"]
                self.assertTrue(a["right_mib"] > b["right_mib"] and b["objective"] < a["objective"] < told["high"])
                self.assertEqual(story.shared_mib(told), a["right_mib"] + b["right_mib"])
                self.assertLess(told["machine_mib"], 2 * (table >> 20))
                # Half each, as the kernel divides what two use alike: enough for B's objective, not for A's.
                server = story.SERVER_MIB + told.get("pool_mib", 0)
                half = (story.shared_mib(told) // 2 - server) << 20
                hits = told.get("pool_mib", 0) / (table >> 20)
                serves = told["disk"] / database.PAGE / (1 - half / table) / (1 - hits) / story.ROWS_PER_TRANSACTION
                self.assertTrue(b["objective"] < serves < a["objective"], (serves, told["roles"]))

    def test_the_papers_size_is_the_papers(self):
        told = story.make("paper", 4064 << 20, False, "phases", 180, 1)
        self.assertEqual([role["right_mib"] for role in told["roles"]], [1843, 1024])  # 1.8 and 1 GB
        self.assertEqual((told["machine_mib"], told["high"], told["low"], told["rows"]), (3072, 800, 200, 19_000_000))
        self.assertEqual(story.length(told), 6 * 180)

    def test_the_phases_are_the_papers(self):
        of = lambda who: [step.demands[who] for step in story.phases(180, 1)]
        self.assertEqual(of(0), ["high", "high", "high", "low", "low", None])
        self.assertEqual(of(1), ["high", "low", "high", "low", "high", "high"])

    def test_what_is_asked_changes_when_a_step_ends_and_a_stopped_one_is_asked_for_nothing(self):
        told = small()
        self.assertEqual(story.asked(told, -3), ([told["high"]] * 2, False))
        self.assertEqual(story.asked(told, 9.9)[0], [told["high"]] * 2)
        self.assertEqual(story.asked(told, 10)[0], [told["high"], told["low"]])
        self.assertEqual(story.asked(told, 55)[0], [None, told["high"]])
        self.assertIsNone(story.asked(told, 60))

    def test_a_random_load_is_the_same_for_a_seed_and_no_other(self):
        self.assertEqual(story.at_random(30, 1), story.at_random(30, 1))
        self.assertNotEqual(story.at_random(30, 1), story.at_random(30, 2))
        self.assertEqual(len(story.cycles(180, 1)), 40)
        self.assertTrue(any(step.scan for step in story.scan(180, 1)))

    def test_a_load_goes_through_json_and_back(self):
        for load in story.LOADS:
            self.assertEqual([tuple(step) for step in story.steps(small(load))], [tuple(step) for step in story.LOADS[load](10, 1)])


class Arms(unittest.TestCase):
    CONTAINER = {"id": "/lab/a", "right_mib": 96, "record": "/run/a.probe", "socket": "/run/a.sock", "questions": 5232}

    def test_each_arm_is_configuration_that_can_be_read(self):
        for name, arm in arms.read().items():
            with self.subTest(name):
                lines = arms.settings(arm, [self.CONTAINER] * 2)
                said = tomllib.loads("\n".join(lines or []))
                self.assertEqual("agent" in arm, said.get("memory", {}).get("mode") == "enforce")
                self.assertEqual([claim["memory"]["reservation"] for claim in said.get("claims", [])], ["96MiB"] * 2 if arm.get("claims") else [])
                self.assertEqual(len(said.get("probes", [])), 2 if "probes" in arm else 0)

    def test_the_shipped_probe_is_promised_what_the_server_counts(self):
        line = arms.probe("shipped", self.CONTAINER)
        self.assertIn('probes/mariadb", "--objective=5232", "--socket=/run/a.sock"', line)

    def test_a_file_brings_arms_and_a_key_that_is_none_is_refused(self):
        with tempfile.TemporaryDirectory() as scratch:
            file = Path(scratch, "arms.toml")
            file.write_text('[quick]\ntitle = "quick"\nagent = ["memory.period = \\"500ms\\""]\n')
            self.assertIn('memory.period = "500ms"', arms.settings(arms.read(file)["quick"], []))
            file.write_text('[quick]\ntitle = "quick"\nsettings = []\n')
            with self.assertRaisesRegex(ValueError, r"\[quick\] has settings"):
                arms.read(file)


class Campaign(unittest.TestCase):
    def test_whose_turn_it_is_rotates_and_what_is_recorded_is_not_run_again(self):
        left = list(campaign.left([[{"policy": "a"}, {"policy": "c"}]], ["a", "b", "c"], 2))
        self.assertEqual(left, [(0, "b"), (1, "b"), (1, "c"), (1, "a")])

    def test_a_machine_that_can_satisfy_no_container_is_refused(self):
        alone = lambda tps: samples.write([Sample(1000 * s, tps, 0, 100) for s in range(1, 9)])
        self.assertEqual(campaign.keeps_up("A", alone(640), 705), alone(640))
        with self.assertRaisesRegex(job.Refused, "B alone, with all memory, does 400 transactions"):
            campaign.keeps_up("B", alone(400), 705)


class Samples(unittest.TestCase):
    def test_columns_are_read_as_they_were_written(self):
        taken = [Sample(1033, 711, 0, 276), Sample(2032, 9, 0, 40_000), Sample(3061, 0, 0, 3)]
        read = samples.read(samples.write(taken), lambda ms: 705)
        self.assertEqual(read, [Sample(1000, 711, 0, 276), Sample(2000, 9, 696, 40_000), Sample(3100, 0, 705, 3)])
        self.assertEqual(samples.read([[1033, 711, 2, 276, 233]], None), [Sample(1033, 711, 2, 276)])

    def test_a_sample_is_of_the_second_that_it_ends(self):
        self.assertEqual([samples.second(Sample(ms, 0, 0, 0)) for ms in (1090, 950, 20_080, -2000)], [0, 0, 19, None])

    def test_a_line_of_sysbench_gives_its_transactions_and_another_none(self):
        line = "[ 3s ] thds: 8 tps: 197.01 qps: 2364.12 (r/w/o: 1970.10/0.00/394.02) lat (ms,95%): 1.25 err/s: 0.00"
        self.assertEqual(database.transactions(line), 197.01)
        self.assertIsNone(database.transactions("Threads started!"))


class Decisions(unittest.TestCase):
    def test_what_was_heard_before_is_not_counted_again(self):
        known, told = set(), {"memory": {"decisions": [{"at": 7, "what": "lend", "amount": 3145728}, {"at": 9, "what": "hold", "until": 12}]}}
        self.assertEqual(stage.new_decisions(told, 1, known), [(7, 1, "lend", 3), (9, 1, "hold", None)])
        self.assertEqual(stage.new_decisions(told, 1, known), [])
        self.assertEqual(stage.new_decisions({"memory": None}, 0, known), [])


def play(tps, phase=2, from_second=0, decided=(), arm="probes", reference=700):
    """B does `tps` of a high demand from a second of the phase on, and nothing before; A does 600 in all phases."""
    told = small()
    b = [[(phase * 10 + s + 1) * 1000 + 90, 0 if s < from_second else tps, 100_000, 0, 0] for s in range(10)]
    a = [[(s + 1) * 1000 + 90, 600, 100_000, 0, 0] for s in range(50)]
    machine = {"stand_in": True, "cgroup_v2": False, "guest": False, "versions": ""}
    alone = [[1000 * s, reference, 0, 100, 0] for s in range(1, 9)]
    raw = {"machine": machine, "story": told, "references": [alone] * 2, "runs": [[{"policy": arm, "samples": [a, b], "decided": list(decided)}]]}
    return studied.study(raw)


def only(found):
    return next(iter(found["arms"].values()))["runs"][0]


class Study(unittest.TestCase):
    def test_the_objective_is_reached_by_throughput_or_by_leaving_nothing(self):
        told = small()
        objective = told["roles"][0]["objective"]
        is_it = lambda demand, tps, queue: studied.is_satisfied(told, 0, demand, Sample(0, tps, queue, 0))
        self.assertTrue(is_it("high", objective, 9999) and not is_it("high", objective - 1, 9999))
        self.assertTrue(is_it("low", 0, 2) and not is_it("low", 0, 3))

    def test_a_container_has_recovered_when_it_was_last_short_of_what_it_wants(self):
        objective = small()["roles"][1]["objective"]
        late = lambda tps, from_second: studied.recovery(found := play(tps, 2, from_second), only(found), 1, 2)
        self.assertEqual([late(objective, 4), late(objective, 8), late(objective, 1)], [4, 8, 0], "one second is no spell")
        found = play(objective, 2, 4)
        for second in (28, 29):
            del only(found)["seconds"][1][second]
        self.assertEqual(studied.recovery(found, only(found), 1, 2), 10, "nothing said is nothing done")
        self.assertAlmostEqual(studied.satisfied(play(objective, 2, 4), only(play(objective, 2, 4)), 1, 2), 0.6)

    def test_loans_that_hurt_are_counted_by_phase(self):
        decided = [{"ms": ms, "who": "B", "what": what, "mib": None} for ms, what in ((-500, "hold"), (100, "lend"), (12_000, "hold"), (15_000, "quarantine"))]
        found = play(1, decided=decided)
        self.assertEqual(studied.failed_loans(found, only(found)), 2)

    def test_table_one_is_in_the_papers_words(self):
        rates = lambda a, b: {"story": small(), "steps": story.steps(small()), "references": [[Sample(0, 700, 0, 0)]] * 2, "arms": {"x": {"runs": [run(a, b)]}}}
        limits = rates((500, 500, 500, 20, 20, 0), (250, 20, 250, 20, 250, 250))
        none = rates((400, 600, 400, 20, 20, 0), (400, 20, 400, 20, 600, 700))
        wanted = rates((500, 690, 500, 20, 20, 0), (250, 20, 250, 20, 680, 700))
        words = [(studied.consolidation(each, "x")[0], studied.isolation(each, "x")) for each in (none, limits, wanted)]
        self.assertEqual(words, [("weak", "no"), ("no", "yes"), ("yes", "yes")])


def run(*rates):
    return {"seconds": [{phase * 10 + s: Sample(0, tps, 0, 0) for phase, tps in enumerate(each) for s in range(10)} for each in rates]}


class Draw(unittest.TestCase):
    def test_a_campaign_that_was_cut_is_drawn_with_one_arm_or_none_and_of_every_load(self):
        try:
            import matplotlib  # noqa: F401
        except ImportError:
            self.skipTest("needs matplotlib: tools/setup lab")
        for load, names in (("phases", []), ("phases", ["max"]), ("cycles", ["blind"])):
            with self.subTest(load=load, arms=names), tempfile.TemporaryDirectory() as scratch:
                out = job.Folder(Path(scratch), {"job": "memory", "date": "", "command": "", "seconds": 0})
                drawn.draw(studied.study(campaign_of(load, names)), out)
                self.assertEqual(len(list(Path(scratch).glob("*.svg"))), 2 if names else 0)


def campaign_of(load, names):
    """One run, in which each container does what it is asked."""
    told = small(load)
    seconds = range(1, story.length(told) + 1)
    one = lambda who: samples.write([Sample(1000 * s, (story.asked(told, s - 1)[0][who] or 0), 0, 90) for s in seconds])
    machine = {"stand_in": True, "cgroup_v2": False, "guest": False, "versions": "MariaDB"}
    runs = [{"policy": name, "samples": [one(0), one(1)], "steady": True, "decided": [], "counts": {}} for name in names]
    described = {name: {**arms.read()[name], "title": name} for name in names}
    return {"machine": machine, "story": told, "arms": described, "references": [samples.write([Sample(1000, 700, 0, 200)])] * 2, "runs": [runs]}


class Harm(unittest.TestCase):
    def test_what_all_use_fits_and_what_the_needer_reads_does_not(self):
        used = memory_harm.GIVERS + memory_harm.HOLDS + 50 * memory_harm.BURST + 50  # threads and processes: less than a MiB each
        self.assertTrue(used < memory_harm.MACHINE < used + memory_harm.READS)
        self.assertTrue(0 < memory_harm.MACHINE - memory_harm.CLAIM < memory_harm.GIVERS)

    def test_work_is_a_part_of_what_was_done_without_a_governor(self):
        case = lambda governed, claim: {"kind": "anon", "givers": 1, "governed": governed, "claim": claim}
        done = [(case(False, False), memory_harm.gone_over("200 MiB\n")), (case(True, False), 199), (case(True, True), 150)]
        outcomes = [{"case": each, "gone_over_mib": mib} for each, mib in done]
        self.assertEqual([memory_harm.work({"outcomes": outcomes}, outcome) for outcome in outcomes], ["100 %", "100 %", "75 %"])

    def test_a_giver_of_cache_names_its_file_last(self):
        words = memory_harm.plan("cache", 320, 10_000, "file")
        self.assertEqual(words, ["churn", 1000, 10_000, 4, 400, "scan", 0, 10_000, 400, "file"])
        self.assertEqual(memory_harm.plan("anon", 6, 10_000, "file")[5:], ["use", 0, 1000, 6, 10_000])
