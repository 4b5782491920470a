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
    put(stream, Stream_deep, deep ? Py_True : Py_False);
    put(stream, Stream_plain, plain ? Py_True : Py_False);
}

/* `lane.reach(value)`: another thread may have learned of a later value meanwhile, and it stays. */
static void
reach(PyObject *lane, PyObject *value)
{
    PyObject *old = NULL;
    Py_BEGIN_CRITICAL_SECTION(lane);
    if (number(value) > number(SLOT(lane, Lane_complete)))
        old = swap(lane, at.Lane_complete, value);
    Py_END_CRITICAL_SECTION();
    Py_XDECREF(old);
}

/* Whether a trace is active, as far as a launch that is being made knows. */
static int
is_traced(PyObject *stream)
{
    return SLOT(SLOT(stream, Stream_scheduler), Scheduler_plain) != Py_True;
}

/* A call of the driver failed: `scheduler.note_failure(error)`. -1, with an exception still set. */
static int
failed(PyObject *scheduler)
{
    Raised raised = set_aside();
    PyObject *arguments[] = {scheduler, raised.error};
    if (call_method(named.note_failure, arguments, 2) == 0)
        raise_again(raised);
    else
        drop_raised(raised); /* for what a signal handler has raised meanwhile */
    return -1;
}

/* `stream.poll()`: 1, 0 if Python must do it, -1 with an exception set. */
int
stream_polls(PyObject *stream)
{
    PyObject *lane = SLOT(stream, Stream_lane);
    long long complete = number_in(lane, Lane_complete), reached;
    if (complete == number(SLOT(lane, Lane_submitted)))
        return 1;
    int asked = timeline_reached(SLOT(stream, Stream_timeline), &reached);
    if (asked < 0)
        return failed(SLOT(stream, Stream_scheduler));
    if (!asked)
        return 0;
    if (is_traced(stream) && reached > complete && trace_done(lane, reached) < 0)
        return -1; /* Python may have put it on the receipt, where a signal handler can raise */
    if (reached > complete) {
        PyObject *value = PyLong_FromLongLong(reached);
        if (value == NULL) {
            PyErr_Clear();
            return 0;
        }
        reach(lane, value);
        Py_DECREF(value);
    }
    return 1;
}

/* `policy.opened(batch)` */
int
policy_opened(PyObject *policy, PyObject *batch)
{
    if (PySet_GET_SIZE(SLOT(policy, SubmitPolicy__blocks)))
        return put_number(batch, Batch_look_at, NEVER);
    return put_number(batch, Batch_look_at, number_in(policy, SubmitPolicy_first_look));
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
        number_in(policy, SubmitPolicy_first_look) > 1)
        return 0;
    if (PyList_GET_SIZE(in_flight)) {
        int polled = stream_polls(stream);
        if (polled <= 0)
            return polled;
        long long complete = number_in(lane, Lane_complete);
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
    PyObject *value = PyLong_FromLongLong(submitted + 1), *zero = PyLong_FromLong(0);
    int begun = value != NULL && zero != NULL ? recording_begins(SLOT(batch, Batch_recording)) : 0;
    int done = begun > 0 && policy_opened(policy, batch) == 0 &&
               PyList_SetSlice(spare, last, last + 1, NULL) == 0;
    if (done) {
        /* Nothing can fail from here on: the batch may be the stream's last one, which counts as
           recorded from the moment that it has a new value. */
        put(batch, Batch_value, value);
        put(batch, Batch_count, zero);
        put(batch, Batch_must_publish, Py_False);
        put(batch, Batch_open, Py_True);
        put(stream, Stream__batch, batch);
    }
    Py_XDECREF(value);
    Py_XDECREF(zero);
    Py_DECREF(batch);
    if (begun < 0)
        return failed(SLOT(stream, Stream_scheduler));
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

/* Submit a batch, to be complete at this value: see `stream_submits`. */
static int
submit_batch(PyObject *stream, PyObject *batch, PyObject *value)
{
    PyObject *lane = SLOT(stream, Stream_lane), *in_flight = SLOT(stream, Stream__in_flight);
    PyObject *recording = SLOT(batch, Batch_recording);
    if (number(value) == number(SLOT(lane, Lane_submitted)))
        return 1;
    if (is_traced(stream) || SLOT(batch, Batch_open) != Py_True ||
        PyDict_GET_SIZE(SLOT(stream, Stream__waits)))
        return 0;
    if (SLOT(batch, Batch_must_publish) == Py_True) {
        int published = recording_publishes(recording);
        if (published <= 0)
            return published;
        put(stream, Stream_published, value);
        count(BARRIERS, 1);
    }
    put(batch, Batch_open, Py_False);
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
    put(lane, Lane_submitted, value);
    note_state(stream);
    count(SUBMISSIONS, 1);
    return 1;
}

/* `stream._submit(reason)` without a trace, which would ask for the reason: 1, 0 if Python must do
   it, and may do all; -1 with an exception set. */
int
stream_submits(PyObject *stream)
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
    return put_number(batch, Batch_look_at, 1);
}

/* `stream._consider_submitting(batch)`. -1 with an exception set if it failed. */
int
stream_consider(PyObject *stream, PyObject *batch)
{
    PyObject *lane = SLOT(stream, Stream_lane), *policy = SLOT(stream, Stream__policy);
    PyObject *arguments[] = {stream, batch};
    int polled = Py_TYPE(policy) == is.SubmitPolicy ? stream_polls(stream) : 0;
    if (polled < 0)
        return -1;
    if (polled) {
        long long count = number(SLOT(batch, Batch_count));
        long long next = 2 * count < LONGEST ? 2 * count : LONGEST;
        int dry = number_in(lane, Lane_complete) == number(SLOT(lane, Lane_submitted));
        if ((dry || count >= LONGEST) &&
            put_number(policy, SubmitPolicy_first_look, dry ? next : 1) == 0) {
            int submitted = stream_submits(stream);
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
    int submitted = is_plain(stream) ? stream_submits(stream) : 0;
    return submitted < 0 ? NULL : PyBool_FromLong(submitted);
}

PyObject *
native_reach(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (count != 2 || Py_TYPE(args[0]) != is.Lane || number(args[1]) < 0)
        Py_RETURN_FALSE;
    reach(args[0], args[1]);
    Py_RETURN_TRUE;
}

PyObject *
native_poll(PyObject *Py_UNUSED(module), PyObject *stream)
{
    int polled = is_plain(stream) ? stream_polls(stream) : 0;
    return polled < 0 ? NULL : PyBool_FromLong(polled);
}

/* Whether there is anything that a wait has to do besides waiting. */
int
is_plain_wait(PyObject *scheduler)
{
    PyObject *ended = SLOT(scheduler, Scheduler_ended), *views = SLOT(scheduler, Scheduler_views);
    return SLOT(scheduler, Scheduler_plain) == Py_True && Py_TYPE(views) == is.HostViews &&
           PyDict_GET_SIZE(SLOT(views, HostViews_held)) == 0 &&
           Py_TYPE(ended) == is.FinaliserQueue &&
           PyObject_Size(SLOT(ended, FinaliserQueue_left)) == 0;
}

/* Let the calling thread use the driver or its memory without the lock, as `Shutdown.use` does: the
   device is not torn down before it leaves, nor are the lanes of `points` (a dict, or NULL)
   released. NULL with an exception set if it must not, which Python explains. */
PyObject *
guest_enters(PyObject *scheduler, PyObject *points)
{
    PyObject *shutdown = SLOT(scheduler, Scheduler_shutdown);
    PyObject *thread = PyLong_FromUnsignedLong(PyThread_get_thread_ident());
    PyObject *lanes = points == NULL ? PyTuple_New(0) : Py_NewRef(points);
    PyObject *guest = thread == NULL || lanes == NULL || Py_TYPE(shutdown) != is.Shutdown
                          ? NULL
                          : is.Guest->tp_alloc(is.Guest, 0);
    if (guest != NULL) {
        put(guest, Guest_points, lanes);
        put(guest, Guest_thread, thread);
        if (PySet_Add(SLOT(shutdown, Shutdown_guests), guest) < 0)
            Py_CLEAR(guest);
    }
    Py_XDECREF(lanes);
    Py_XDECREF(thread);
    return guest;
}

/* The calling thread is done. -1 with an exception set: one that was set before, or of tearing down,
   which the guest may have delayed. */
int
guest_leaves(PyObject *scheduler, PyObject *guest)
{
    Raised aside = set_aside();
    PyObject *shutdown = SLOT(scheduler, Scheduler_shutdown), *arguments[] = {shutdown};
    PySet_Discard(SLOT(shutdown, Shutdown_guests), guest);
    Py_DECREF(guest);
    int torn = SLOT(shutdown, Shutdown_over) == Py_False ||
               call_method(named.tear_down, arguments, 1) == 0;
    if (aside.error != NULL)
        raise_again(aside);
    return torn && aside.error == NULL ? 0 : -1;
}

/* `scheduler.await_points({lane: value})` of a stream's lane, for as long as Python sleeps at a time.
   Whether the value was reached; -1 with an exception set. Without the lock. `counted` says that it
   is the host's wait, and not that of a thread that copies for it. */
int
await_point(PyObject *scheduler, PyObject *stream, PyObject *value, int counted)
{
    PyObject *lane = SLOT(stream, Stream_lane), *points = PyDict_New();
    int reached = 0;
    if (points == NULL || PyDict_SetItem(points, lane, value) < 0) {
        Py_XDECREF(points);
        return -1;
    }
    PyObject *guest = guest_enters(scheduler, points);
    Py_DECREF(points);
    if (guest == NULL)
        return -1;
    /* A timeline whose lane is complete may be gone: until the guest was there, another thread could
       release it. */
    if (number(value) <= number_in(lane, Lane_complete))
        reached = 1;
    else if (SLOT(SLOT(scheduler, Scheduler_shutdown), Shutdown_over) == Py_False) {
        PyObject *timeline = SLOT(stream, Stream_timeline);
        long long come;
        /* What is reached by now is no wait, where waits are counted. */
        int asked = counted && is_counting() ? timeline_reached(timeline, &come) : 0;
        if (asked < 0)
            reached = -1;
        else if (asked && come >= number(value))
            reached = 1;
        else if ((reached = timeline_comes(timeline, number(value))) > 0 && counted)
            count(WAITS, 1);
    }
    if (reached < 0)
        failed(scheduler);
    else if (reached)
        reach(lane, value);
    return guest_leaves(scheduler, guest) < 0 ? -1 : reached;
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
    PyObject *stream = SLOT(lane, Lane_owner);
    if (Py_TYPE(stream) != is.Stream || number(value) > number_in(lane, Lane_submitted))
        Py_RETURN_FALSE;
    Py_INCREF(stream);
    Py_INCREF(value);
    int reached = await_point(scheduler, stream, value, 0);
    Py_DECREF(stream);
    Py_DECREF(value);
    return reached < 0 ? NULL : PyBool_FromLong(reached);
}
