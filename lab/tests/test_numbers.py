"""Statistics, and how numbers are written."""

import unittest

from lab import stats, tables


class Stats(unittest.TestCase):
    def test_the_median_of_an_even_number_lies_between_the_middle_two(self):
        self.assertEqual(stats.spread([4, 1, 2, 3]), (2.5, 1, 4))
        self.assertIsNone(stats.spread([]))

    def test_a_mean_has_the_deviation_of_a_sample_and_none_of_a_single_value(self):
        self.assertEqual(stats.mean([2, 4, 6]), (4, 2))
        self.assertEqual(stats.mean([3]).deviation, 0)

    def test_quantiles_are_samples_that_were_taken(self):
        expected = {"samples": 1000, "p50": 500, "p90": 900, "p99": 990, "p999": 999, "max": 1000}
        self.assertEqual(stats.quantiles(range(1000, 0, -1)), expected)
        self.assertEqual(stats.quantiles([])["p50"], 0)
        self.assertEqual([stats.quantile([1, 2, 3], part) for part in (500, 950, 990)], [2, 3, 3])

    def test_ratios_are_of_the_rounds_that_both_have(self):
        self.assertEqual(stats.ratios({0: 500, 1: 5000, 2: 1}, {0: 100, 1: 1000, 3: 1}), [5, 5])

    def test_a_bucket_is_above_its_samples_and_at_most_an_eighth_wider(self):
        for ns in (0, 15, 16, 17, 31, 32, 1000, 999_999, 1 << 40):
            self.assertTrue(ns <= stats.bucket(ns) <= ns * 1.13 + 1, ns)
        self.assertEqual(stats.cumulative(stats.histogram([10, 10, 1000]))[-1][0], 1)

    def test_a_straight_line_has_its_slope_and_no_error(self):
        slope, error = stats.slope([(0, 1), (1, 3), (2, 5)])
        self.assertAlmostEqual(slope, 2)
        self.assertAlmostEqual(error, 0)
        self.assertIsNone(stats.slope([(0, 1), (1, 2)]))


class Texts(unittest.TestCase):
    def test_numbers_keep_three_digits(self):
        for value, text in ((0.01234, "0.0123"), (1.234, "1.23"), (123.4, "123"), (12345.6, "12346"), (0, "0"), (0.0, "0")):
            self.assertEqual(tables.short(value), text)

    def test_times_are_written_in_their_own_unit(self):
        for ns, text in ((200, "200 ns"), (1e4, "10 µs"), (1.5e6, "1.50 ms"), (2e9, "2 s")):
            self.assertEqual(tables.nanoseconds(ns), text)

    def test_a_table_is_markdown(self):
        self.assertEqual(tables.table(["a", "b"], [["x", 1]]), "| a | b |\n| :-- | --: |\n| x | 1 |")
