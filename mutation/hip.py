"""Every wait, event, hold and argument of the HIP driver, removed or weakened."""

from __future__ import annotations

from mutation.mutants import Mutant

_ELSEWHERE = {"holding": "driver.holding", "numpy_arguments": "launch.numpy_arguments"}


def _mutant(name: str, module: str, old: str, new: str) -> Mutant:
    place = _ELSEWHERE.get(module, f"driver.hip.{module}")
    return Mutant(name, place, old, new, driver="hip")


HIP = [
    # Waits between streams.
    _mutant(
        "a stream does not wait for another",
        "recording",
        '                driver.must(driver.call.hipStreamWaitEvent(stream, event, 0), "hipStream',
        '                driver.must(0 * len([stream, event]), "hipStream',
    ),
    _mutant(
        "a stream waits for an earlier value",
        "timeline",
        "for at, event in self._events if at >= value), None)",
        "for at, event in self._events), None)",
    ),
    _mutant(
        "a stream does not wait unless for the last value",
        "timeline",
        "for at, event in self._events if at >= value), None)",
        "for at, event in self._events if at > value), None)",
    ),
    # Submissions that are held back.
    _mutant(
        "work that waits for the host is not held",
        "recording",
        "(not self.held and (not waits or all_issued(waits)))\n",
        "not self.held\n",
    ),
    _mutant(
        "work behind what is held is not held",
        "recording",
        "(not self.held and (not waits or all_issued(waits)))\n",
        "(not waits or all_issued(waits))\n",
    ),
    _mutant(
        "work that waits for what is held is not held",
        "holding",
        "    return all(timeline.issued >= value for timeline, value in waits)\n",
        "    return all(timeline._events or timeline.issued >= v for timeline, v in waits)\n",
    ),
    _mutant(
        "a signal does not let go of what is held",
        "driver",
        "        timeline.raise_to(value)\n        if self.backlog.queues:\n"
        "            self.issue_held()\n",
        "        timeline.raise_to(value)\n",
    ),
    _mutant(
        "what is held and fails is not tried again",
        "holding",
        "            return False\n        queue.held.popleft()\n",
        "            return False\n",
    ),
    _mutant(
        "no thread attends to held submissions",
        "recording",
        "                if ready or recording.counted:\n"
        "                    driver.attend_to_held()\n",
        "",
    ),
    _mutant(
        "a launch does not wait for its number of groups",
        "driver",
        "        if result == NOT_READY:\n            return None\n        self._driver.must(",
        "        if result != NOT_READY:\n            self._driver.must(",
    ),
    # Completion of work.
    _mutant(
        "a value counts as reached before its event has happened",
        "timeline",
        "                if result == NOT_READY:\n                    return\n"
        "                if result:\n",
        "                if result not in (0, NOT_READY):\n",
    ),
    _mutant(
        "no event behind a submission",
        "recording",
        "        result = driver.call.hipEventRecord(event, stream)\n        if result:\n",
        "        result = 0\n        if result:\n",
    ),
    _mutant(
        "the host waits for one value of many",
        "timeline",
        "    left = list(points)\n",
        "    left = list(points)[-1:]\n",
    ),
    _mutant(
        "an event is used again before it has happened",
        "timeline",
        "        self._events.append((value, event))\n        self.issued = value\n",
        "        self._events.append((value, event))\n        self.issued = value\n"
        "        self._driver.events.give_back(event)\n",
    ),
    _mutant(
        "a submission that is made again begins anew",
        "recording",
        "            driver.select()\n        if not recording.event:\n",
        "            driver.select()\n"
        "        recording.issued = 0\n        if not recording.event:\n",
    ),
    # Arguments and graphs.
    _mutant(
        "a launch gets the numbers of the one before",
        "driver",
        "        if block != program.passed:\n",
        "        if program.passed is None:\n",
    ),
    _mutant(
        "a launch gets the arrays of the one before",
        "driver",
        "        if bindings != program.bound:\n",
        "        if program.bound is None:\n",
    ),
    _mutant(
        "a graph runs on two streams at once",
        "recording",
        "        if self._last and self._last != stream:\n",
        "        if False:\n",
    ),
    _mutant(
        "a graph waits for a stream that is gone",
        "recording",
        "            replayable.forget_stream()\n",
        "            pass\n",
    ),
    # Copies from and to the caller's memory, at once.
    _mutant(
        "a copy at once is not waited for",
        "driver",
        "        copy, stream = self.call.hipMemcpyWithStream, self._copying[0]\n",
        "        copy, stream = self.call.hipMemcpyAsync, self._copying[0]\n",
    ),
    _mutant(
        "a copy at once keeps step with the default stream",
        "driver",
        "self.call.hipStreamCreateWithFlags(self._copying, _NON_BLOCKING)",
        "self.call.hipStreamCreateWithFlags(self._copying, 0)",
    ),
    _mutant(
        "a copy at once goes to memory that is yet to be cleared",
        "numpy_arguments",
        "        return not array.buffer.backing.history.pending()\n",
        "        return True\n",
    ),
    _mutant(
        "an array that is not in one piece is copied as if it were",
        "numpy_arguments",
        "    return scheduler.driver.copies and waits and host.flags.c_contiguous\n",
        "    return scheduler.driver.copies and waits\n",
    ),
    _mutant(
        "a loss during a copy at once is not noted",
        "numpy_arguments",
        "        scheduler.mark_lost(error)\n",
        "        pass\n",
    ),
    # Flags of HIP calls.
    _mutant(
        "events do not show the host what was written",
        "timeline",
        "        flags = _DISABLE_TIMING | _RELEASE_TO_SYSTEM\n",
        "        flags = _DISABLE_TIMING\n",
    ),
    _mutant(
        "streams keep step with the default stream",
        "recording",
        "driver.call.hipStreamCreateWithFlags(out, _NON_BLOCKING)",
        "driver.call.hipStreamCreateWithFlags(out, 0)",
    ),
    _mutant(
        "host memory is not coherent",
        "memory",
        "            flags = _PORTABLE | _MAPPED | _COHERENT\n",
        "            flags = _PORTABLE | _MAPPED\n",
    ),
    # Timestamps.
    _mutant(
        "times between events are taken in other units",
        "clock",
        "round(float(out[0]) * 1e6)",
        "round(float(out[0]) * 1e9)",
    ),
    _mutant(
        "the device's clock is taken for a second ahead of the host's, in HIP",
        "clock",
        "self._series.append((done.before, done.after, tick))",
        "self._series.append((done.before, done.after, tick - 10**9))",
    ),
]
