#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
"""Runs rdma-core's pyverbs tests on a device and compares the results with the expected ones.

The report is in KTAP. The tests are those of the rdma-core source tree. Each module runs in its own
process, forked from this one: the slow part, loading Python's modules, is done once, and a test
that crashes or hangs does not affect the results of other modules.

The file of expectations has a line for each test: its name, its results on virtio_rdma and on rxe,
and the reason if it is skipped. A result is "pass" or "skip". On rxe it may also be "fail", or
"any" if it depends on timing.
"""

import argparse
import collections
import contextlib
import importlib
import os
import select
import signal
import sys
import time
import traceback
import types
import unittest

# Test modules for the devices of one vendor.
FOREIGN = ("test_mlx5", "test_efa", "test_cuda")
# Seconds after which a test counts as hanging. Tests of rdma_cm themselves wait for up to half a
# minute.
PATIENCE = 180
# Reasons for which virtio_rdma may skip a test that passes on rxe.
ABSENT = ("ODP",)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--tests", required=True, help="directory of rdma-core's tests")
    parser.add_argument("--dev", required=True, help="RDMA device")
    parser.add_argument("--gid", required=True, help="index of the GID to use")
    parser.add_argument("--expected", help="file of expectations")
    parser.add_argument("--column", choices=("virtio_rdma", "rxe"), default="virtio_rdma")
    parser.add_argument("--print", action="store_true",
                        help="print name, result and reason of each test, no KTAP")
    parser.add_argument("modules", nargs="*",
                        help="modules to run, without \"test_\"; all if there are none")
    return parser.parse_args()


def load(options):
    """The test cases by module."""
    sys.dont_write_bytecode = True
    # Importing the tests' package itself would load every module.
    package = types.ModuleType("tests")
    package.__path__ = [options.tests]
    sys.modules["tests"] = package
    sys.path.insert(0, options.tests)
    from args_parser import parser  # pylint: disable=import-error,import-outside-toplevel

    sys.argv = ["pyverbs", "--dev", options.dev, "--port", "1", "--gid", options.gid]
    parser.parse_args()
    files = [name for name in os.listdir(options.tests) if name.endswith(".py")]
    names = sorted(name[:-3] for name in files if name.startswith("test_"))
    wanted = ["test_" + module for module in options.modules]
    unknown = set(wanted) - set(names)
    if unknown:
        sys.exit("no such module: " + " ".join(sorted(unknown)))
    modules = {}
    for name in names:
        if name.startswith(FOREIGN) or (wanted and name not in wanted):
            continue
        module = importlib.import_module("tests." + name)
        suites = unittest.defaultTestLoader.loadTestsFromModule(module)
        modules[name] = [case for suite in suites for case in suite]
    return modules


def short(case):
    """module.Class.test"""
    return case.id().removeprefix("tests.")


class Teller(unittest.TestResult):
    """Reports the start and the end of each test to the parent process."""

    def __init__(self, pipe):
        super().__init__()
        self.pipe = pipe
        self.outcome = None

    def tell(self, *words):
        line = "\t".join(word.replace("\n", " ").replace("\t", " ") for word in words)
        os.write(self.pipe, (line + "\n").encode())

    def startTest(self, test):
        super().startTest(test)
        self.outcome = ("pass", "")
        self.tell("start", short(test))

    def stopTest(self, test):
        super().stopTest(test)
        self.tell("end", short(test), *self.outcome)

    def failed(self, error):
        text = "".join(traceback.format_exception(*error))
        print("# " + text.rstrip().replace("\n", "\n# "), flush=True)
        self.outcome = ("fail", str(error[1]))

    def addError(self, test, err):
        self.failed(err)

    def addFailure(self, test, err):
        self.failed(err)

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self.failed(err)

    def addSkip(self, test, reason):
        self.outcome = ("skip", reason)


def child(cases, pipe):
    """Runs a module's tests in the child process."""
    result = Teller(pipe)
    for case in cases:
        case.run(result)
    result.tell("done", "")
    os._exit(0)


def run_some(cases):
    """Runs test cases in a child process until one crashes or hangs. Yields name, result and
    reason."""
    reader, writer = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        # A new session, so that the processes of a hanging test can be killed with it.
        os.setsid()
        try:
            child(cases, writer)
        finally:
            traceback.print_exc()
            os._exit(1)
    os.close(writer)
    pending = b""
    running = None
    hung = False
    done = False
    deadline = time.monotonic() + PATIENCE
    while not done:
        ready, _, _ = select.select([reader], [], [], max(0, deadline - time.monotonic()))
        if not ready:
            hung = True
            break
        data = os.read(reader, 65536)
        if not data:
            break
        *lines, pending = (pending + data).split(b"\n")
        for line in lines:
            deadline = time.monotonic() + PATIENCE
            kind, name, *rest = line.decode().split("\t")
            running = name if kind == "start" else None
            # The child sends "done" because the end of the pipe may never come: a process that a
            # test has left running has the pipe open too.
            done = kind == "done"
            if kind == "end":
                yield name, rest[0], rest[1]
    os.close(reader)
    # Kill the rest of the session before the wait: afterwards the number could be reused.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    if running:
        reason = f"no end in {PATIENCE} s" if hung else f"the process ended with status {status:#x}"
        yield running, "fail", reason


def run_module(cases):
    """Runs all tests of a module. After a crash, the remaining tests run in a new process."""
    left = {short(case): case for case in cases}
    while left:
        before = len(left)
        for name, outcome, reason in run_some(list(left.values())):
            del left[name]
            yield name, outcome, reason
        if len(left) == before:
            yield next(iter(left)), "fail", "the module's process did not start"
            return


Expectation = collections.namedtuple("Expectation", "virtio_rdma rxe reason")


def expectations(path):
    """Reads the file of expectations and checks its rules."""
    found = {}
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip() or line.startswith("#"):
                continue
            name, ours, rxe, *reason = line.split(maxsplit=3)
            expectation = Expectation(ours, rxe, reason[0].strip() if reason else "")
            where = f"{path}:{number}: {name}"
            is_known = ours in ("pass", "skip") and rxe in ("pass", "skip", "fail", "any")
            if name in found or not is_known:
                sys.exit(f"{where}: not an expectation")
            if ours == "skip" and not expectation.reason:
                sys.exit(f"{where}: skipped without a reason")
            is_absent = expectation.reason.startswith(ABSENT)
            if ours == "skip" and rxe in ("pass", "any") and not is_absent:
                sys.exit(f"{where}: passes on rxe, and nothing that virtio_rdma may lack is named")
            found[name] = expectation
    return found


def main():
    options = arguments()
    modules = load(options)
    if options.print:
        for cases in modules.values():
            for name, outcome, reason in run_module(cases):
                print(f"{name}\t{outcome}\t{reason}", flush=True)
        return 0

    expected = expectations(options.expected)
    expected = {name: value for name, value in expected.items() if name.split(".")[0] in modules}
    known = set(expected) | {short(case) for cases in modules.values() for case in cases}
    print(f"KTAP version 1\n1..{len(known)}")
    number = 0
    bad = 0

    def report(name, fault, skipped=""):
        nonlocal number, bad
        number += 1
        if fault:
            bad += 1
            print(f"# {name}: {fault}\nnot ok {number} {name}", flush=True)
        else:
            print(f"ok {number} {name}" + (f" # SKIP {skipped}" if skipped else ""), flush=True)

    table = []
    for module, cases in modules.items():
        began = time.monotonic()
        count = collections.Counter()
        for name, outcome, reason in run_module(cases):
            count[outcome] += 1
            expectation = expected.pop(name, None)
            wanted = "in the file of expectations"
            if expectation:
                wanted = getattr(expectation, options.column)
            if wanted in (outcome, "any"):
                skipped = (expectation.reason or reason) if outcome == "skip" else ""
                report(name, "", skipped)
            else:
                report(name, f"{outcome} ({reason}), expected: {wanted}")
        table.append((module, count, time.monotonic() - began))
    for name in sorted(expected):
        report(name, "there is no such test")
    print(f"# {'module':24} {'pass':>5} {'skip':>5} {'fail':>5} {'s':>5}")
    for module, count, seconds in table:
        print(f"# {module:24} {count['pass']:5} {count['skip']:5} {count['fail']:5} {seconds:5.0f}")
    return bad != 0


sys.exit(main())
