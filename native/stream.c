/* What a stream does for a launch, as `penstock.schedule.stream` does it: open a batch, submit it,
   learn how far the device has come, wait for a moment. */

#include "layout.h"

static const long long LONGEST = 128; /* commands in one batch: `submit_policy.LONGEST` */
static const long long DEEPEST = 256; /* submissions in flight: `submit_policy.DEEPEST` */
static const long long NEVER = 1LL << 62;

/* `stream._note_state()` */
static void
note_state(PyObject *stream)
{
    int deep = PyList_GET_SIZE(SLOT(stream, Stream__in_flight)) >= DEEPEST;
    int plain = !deep && SLOT(stream, Stream__closed) == Py_False;
    put(&SLOT(stream, Stream_deep), deep ? Py_True : Py_False);
    put(&SLOT(stream, Stream_plain), plain ? Py_True : Py_False);
}

/* A call of the driver failed: `scheduler.note_failure(error)`. -1, with an exception still set. */
static int
failed(PyObject *scheduler)
{
    Raised raised = take_raised();
    PyObject *arguments[] = {scheduler, raised.error};
    if (call_method(named.note_failure, arguments, 2) == 0)
        raise_again(raised);
    else
        drop_raised(raised); /* for what a signal handler has raised meanwhile */
    return -1;
}

/* `stream.poll()`: 1, 0 if Python must do it, -1 with an exception set. */
static int
poll(PyObject *stream)
{
    PyObject *lane = SLOT(stream, Stream_lane);
    long long complete = number(SLOT(lane, Lane_complete)), reached;
    if (complete == number(SLOT(lane, Lane_submitted)))
        return 1;
    int asked = timeline_reached(SLOT(stream, Stream_timeline), &reached);
    if (asked < 0)
        return failed(SLOT(stream, Stream_scheduler));
    if (!asked)
        return 0;
    if (reached != complete && put_number(&SLOT(lane, Lane_complete), reached) < 0) {
        PyErr_Clear();
        return 0;
    }
    return 1;
}

/* `policy.opened(batch)` */
static int
opened(PyObject *policy, PyObject *batch)
{
    if (PySet_GET_SIZE(SLOT(policy, SubmitPolicy__blocks)))
        return put_number(&SLOT(batch, Batch_look_at), NEVER);
    put(&SLOT(batch, Batch_look_at), SLOT(policy, SubmitPolicy_first_look));
    return 0;
}

/* `stream._start()`: 1, 0 if Python must do it, and may do all of it; -1 with an exception set. */
static int
start(PyObject *stream)
{
    PyObject *lane = SLOT(stream, Stream_lane), *policy = SLOT(stream, Stream__policy);
    PyObject *in_flight = SLOT(stream, Stream__in_flight), *spare = SLOT(stream, Stream__spare);
    long long submitted = number(SLOT(lane, Lane_submitted));
    if (number(SLOT(SLOT(stream, Stream__batch), Batch_value)) > submitted ||
        PyDict_GET_SIZE(SLOT(stream, Stream__waits)) || Py_TYPE(policy) != is.SubmitPolicy ||
        number(SLOT(policy, SubmitPolicy_first_look)) > 1)
        return 0;
    if (PyList_GET_SIZE(in_flight)) {
        int polled = poll(stream);
        if (polled <= 0)
            return polled;
        long long complete = number(SLOT(lane, Lane_complete));
        while (PyList_GET_SIZE(in_flight)) {
            PyObject *oldest = PyList_GET_ITEM(in_flight, 0);
            if (number(SLOT(oldest, Batch_value)) > complete)
                break;
            if (PyList_GET_SIZE(SLOT(oldest, Batch_marks)) || PyList_Append(spare, oldest) < 0) {
                PyErr_Clear();
                return 0;
            }
            if (PyList_SetSlice(in_flight, 0, 1, NULL) < 0) {
                PyErr_Clear();
                PyList_SetSlice(spare, PyList_GET_SIZE(spare) - 1, PyList_GET_SIZE(spare), NULL);
                return 0;
            }
        }
        note_state(stream);
    }
    Py_ssize_t last = PyList_GET_SIZE(spare) - 1;
    if (last < 0)
        return 0;
    PyObject *batch = Py_NewRef(PyList_GET_ITEM(spare, last));
    int done = 0;
    if (recording_begins(SLOT(batch, Batch_recording)) < 0) {
        Py_DECREF(batch);
        return failed(SLOT(stream, Stream_scheduler));
    }
    if (opened(policy, batch) == 0 &&
        put_number(&SLOT(batch, Batch_value), submitted + 1) == 0 &&
        put_number(&SLOT(batch, Batch_count), 0) == 0 &&
        PyList_SetSlice(spare, last, last + 1, NULL) == 0) {
        put(&SLOT(batch, Batch_must_publish), Py_False);
        put(&SLOT(batch, Batch_open), Py_True);
        put(&SLOT(stream, Stream__batch), batch);
        done = 1;
    }
    Py_DECREF(batch);
    PyErr_Clear();
    return done;
}

/* The batch that the next command goes into; a new reference. NULL with an exception set if there
   is none. */
PyObject *
stream_batch(PyObject *stream)
{
    PyObject *batch = SLOT(stream, Stream__batch);
    int started = SLOT(batch, Batch_open) == Py_True ? 1 : start(stream);
    if (started < 0)
        return NULL;
    if (started)
        return Py_NewRef(SLOT(stream, Stream__batch));
    return PyObject_CallMethodNoArgs(stream, named._start);
}

/* Submit a batch, to be complete at this value: see `submit`. */
static int
submit_batch(PyObject *stream, PyObject *batch, PyObject *value)
{
    PyObject *lane = SLOT(stream, Stream_lane), *in_flight = SLOT(stream, Stream__in_flight);
    PyObject *recording = SLOT(batch, Batch_recording);
    if (number(value) == number(SLOT(lane, Lane_submitted)))
        return 1;
    if (SLOT(batch, Batch_open) != Py_True || PyDict_GET_SIZE(SLOT(stream, Stream__waits)))
        return 0;
    if (SLOT(batch, Batch_must_publish) == Py_True) {
        int published = recording_publishes(recording);
        if (published <= 0)
            return published;
        put(&SLOT(stream, Stream_published), value);
    }
    put(&SLOT(batch, Batch_open), Py_False);
    PyObject *queue = SLOT(stream, Stream_queue), *timeline = SLOT(stream, Stream_timeline);
    int submitted = queue_submits(queue, recording, timeline, value);
    if (submitted < 0)
        return failed(SLOT(stream, Stream_scheduler));
    if (!submitted)
        return 0;
    if (PyList_Append(in_flight, batch) < 0) {
        PyErr_Clear();
        return 0; /* Python finds it issued, and goes on from there */
    }
    put(&SLOT(lane, Lane_submitted), value);
    note_state(stream);
    return 1;
}

/* `stream._submit(reason)`, which only a trace asks for: 1, 0 if Python must do it, and may do all;
   -1 with an exception set. */
static int
submit(PyObject *stream)
{
    PyObject *batch = Py_NewRef(SLOT(stream, Stream__batch));
    PyObject *value = Py_NewRef(SLOT(batch, Batch_value));
    int done = submit_batch(stream, batch, value);
    Py_DECREF(value);
    Py_DECREF(batch);
    return done;
}

/* A submission failed. Without memory for it, the next command tries again: 0, as in
   `_consider_submitting`. Else -1, with the exception still set. */
static int
put_off(PyObject *batch)
{
    if (!PyErr_ExceptionMatches((PyObject *)is.OutOfMemory))
        return -1;
    PyErr_Clear();
    return put_number(&SLOT(batch, Batch_look_at), 1);
}

/* `stream._consider_submitting(batch)`. -1 with an exception set if it failed. */
int
stream_consider(PyObject *stream, PyObject *batch)
{
    PyObject *lane = SLOT(stream, Stream_lane), *policy = SLOT(stream, Stream__policy);
    PyObject *arguments[] = {stream, batch};
    int polled = Py_TYPE(policy) == is.SubmitPolicy ? poll(stream) : 0;
    if (polled < 0)
        return -1;
    if (polled) {
        long long count = number(SLOT(batch, Batch_count));
        long long next = 2 * count < LONGEST ? 2 * count : LONGEST;
        int dry = number(SLOT(lane, Lane_complete)) == number(SLOT(lane, Lane_submitted));
        if ((dry || count >= LONGEST) &&
            put_number(&SLOT(policy, SubmitPolicy_first_look), dry ? next : 1) == 0) {
            int submitted = submit(stream);
            if (submitted > 0)
                return 0;
            if (submitted < 0)
                return put_off(batch);
        }
    }
    PyErr_Clear();
    return call_method(named._consider_submitting, arguments, 2);
}

/* --- what Python calls ----------------------------------------------------------------------- */

/* Whether nothing about a stream of the right class is unusual. */
static int
is_plain(PyObject *stream)
{
    return Py_TYPE(stream) == is.Stream &&
           SLOT(SLOT(stream, Stream_scheduler), Scheduler_plain) == Py_True;
}

PyObject *
native_start(PyObject *Py_UNUSED(module), PyObject *stream)
{
    int started = is_plain(stream) ? start(stream) : 0;
    if (started < 0)
        return NULL;
    return Py_NewRef(started ? SLOT(stream, Stream__batch) : Py_None);
}

PyObject *
native_submit(PyObject *Py_UNUSED(module), PyObject *stream)
{
    int submitted = is_plain(stream) ? submit(stream) : 0;
    return submitted < 0 ? NULL : PyBool_FromLong(submitted);
}

PyObject *
native_poll(PyObject *Py_UNUSED(module), PyObject *stream)
{
    int polled = is_plain(stream) ? poll(stream) : 0;
    return polled < 0 ? NULL : PyBool_FromLong(polled);
}

/* Whether there is anything that a wait has to do besides waiting. */
static int
is_plain_wait(PyObject *scheduler)
{
    PyObject *ended = SLOT(scheduler, Scheduler_ended), *views = SLOT(scheduler, Scheduler_views);
    return SLOT(scheduler, Scheduler_plain) == Py_True && Py_TYPE(views) == is.HostViews &&
           PyDict_GET_SIZE(SLOT(views, HostViews_held)) == 0 &&
           Py_TYPE(ended) == is.FinaliserQueue &&
           PyObject_Size(SLOT(ended, FinaliserQueue_left)) == 0;
}

PyObject *
native_wait(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    PyObject *scheduler = args[0], *points = args[1], *lane, *value;
    Py_ssize_t position = 0;
    if (count != 2 || Py_TYPE(scheduler) != is.Scheduler || !PyDict_CheckExact(points) ||
        PyDict_GET_SIZE(points) != 1 || !is_plain_wait(scheduler) ||
        !PyDict_Next(points, &position, &lane, &value))
        Py_RETURN_FALSE;
    PyObject *stream = SLOT(lane, Lane_owner), *shutdown = SLOT(scheduler, Scheduler_shutdown);
    if (Py_TYPE(stream) != is.Stream || number(value) > number(SLOT(lane, Lane_submitted)))
        Py_RETURN_FALSE;
    PyObject *guest = PyObject_CallOneArg((PyObject *)is.Guest, points);
    if (guest == NULL || Py_TYPE(shutdown) != is.Shutdown ||
        PySet_Add(SLOT(shutdown, Shutdown_guests), guest) < 0) {
        Py_XDECREF(guest);
        return NULL;
    }
    int reached = 0;
    PyObject *timeline = Py_NewRef(SLOT(stream, Stream_timeline));
    Py_INCREF(lane);
    Py_INCREF(value);
    if (SLOT(shutdown, Shutdown_over) == Py_False)
        reached = timeline_comes_soon(timeline, number(value));
    Py_DECREF(timeline);
    int lost = reached < 0 && failed(scheduler) < 0;
    Raised raised = take_raised();
    PySet_Discard(SLOT(shutdown, Shutdown_guests), guest);
    Py_DECREF(guest);
    PyObject *arguments[] = {shutdown};
    lost |= SLOT(shutdown, Shutdown_over) != Py_False &&
            call_method(named.tear_down, arguments, 1) < 0;
    if (raised.error != NULL)
        raise_again(raised);
    if (reached > 0 && number(value) > number(SLOT(lane, Lane_complete)))
        put(&SLOT(lane, Lane_complete), value);
    Py_DECREF(lane);
    Py_DECREF(value);
    return lost ? NULL : PyBool_FromLong(reached);
}
