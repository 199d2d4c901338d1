import json
import os
import socket
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import elbowroom
from elbowroom import _probe


class Probe(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()
        self.path = os.path.join(self.dir.name, "probe.sock")
        self.environment = mock.patch.dict(os.environ, {"ELBOWROOM_PROBE": self.path})
        self.environment.start()
        self.elsewhere = mock.patch.object(_probe, "PROBE", None)
        self.elsewhere.start()
        _probe._socket = None

    def tearDown(self):
        if _probe._socket:
            _probe._socket.close()
            _probe._socket = None
        self.environment.stop()
        self.elsewhere.stop()
        self.dir.cleanup()

    def agent(self):
        if os.path.exists(self.path):
            os.unlink(self.path)
        agent = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        agent.bind(self.path)
        agent.settimeout(20)
        self.addCleanup(agent.close)
        return agent

    def test_what_is_said_arrives_and_what_is_not_said_does_not(self):
        agent = self.agent()
        self.assertTrue(elbowroom.probe(served=812, objective=800))
        self.assertEqual(json.loads(agent.recv(4096)), {"served": 812, "objective": 800})
        self.assertTrue(elbowroom.probe(served_total=5, kind="latency", time_total=0.5))
        self.assertEqual(json.loads(agent.recv(4096)), {"served_total": 5, "kind": "latency", "time_total": 0.5})

    def test_without_an_agent_nothing_happens_and_one_that_comes_back_is_found(self):
        self.assertFalse(elbowroom.probe(served=1))
        first = self.agent()
        self.assertTrue(elbowroom.probe(served=1))
        first.close()
        second = self.agent()
        self.assertTrue(elbowroom.probe(served=2))
        self.assertEqual(json.loads(second.recv(4096)), {"served": 2})

    def test_a_thread_that_finds_the_agent_restarted_takes_no_socket_from_another(self):
        class Restarted:
            def send(self, record, flags):
                _probe._socket = None  # the other thread was first
                raise ConnectionRefusedError

            def close(self):
                pass

        agent = self.agent()
        _probe._socket = Restarted()
        self.assertTrue(elbowroom.probe(served=3))
        self.assertEqual(json.loads(agent.recv(4096)), {"served": 3})

    def test_an_agent_that_reads_nothing_is_not_waited_for(self):
        self.agent()
        self.assertIn(False, [elbowroom.probe(served=1) for _ in range(10_000)])

    def test_saying_nothing_is_an_error_of_the_program(self):
        with self.assertRaises(ValueError):
            elbowroom.probe(offered=3)


if __name__ == "__main__":
    unittest.main()
