/* What a launch puts on the receipts of active traces, as Python does with `events.emit`.

   An event is one tuple, which `Trace` reads later. The Python function adds it where something is
   met for the first time: a thread, or a file of code. */

#include "layout.h"
#include <stdatomic.h>

static PyObject *events;       /* the names of `penstock.tracing.events` */
static PyObject *threads_file; /* of `threading`: what a thread runs below that is not the user's */
static PyObject *names_given;  /* in the call of `emit` */
static PyObject *zero, *no_seconds, *nothing_awaited;
atomic_int traces_active; /* whether a trace is: a launch then takes the time of its call */

/* The texts of the events here; Python has the same. */
#define WORDS(WORD)                                                                                \
    WORD(nothing, "")                                                                              \
    WORD(barrier, "barrier")                                                                       \
    WORD(device, "device")                                                                         \
    WORD(after, "after %s of bytes %d:%d by %s on %s")                                             \
    WORD(read, "read")                                                                             \
    WORD(write, "write")                                                                           \
    WORD(launch, "launch")                                                                         \
    WORD(in_groups, "%s in %s groups")                                                             \
    WORD(done, "done")                                                                             \
    WORD(polled, "the host polled the stream")

static struct {
#define DECLARE(name, text) PyObject *name;
    WORDS(DECLARE)
#undef DECLARE
} word;

static atomic_int counting;
static atomic_llong counted[COUNTED];

/* Whether something counts what the runtime does. */
int
is_counting(void)
{
    return atomic_load_explicit(&counting, memory_order_relaxed);
}

/* `events.count(…)` */
void
count(int what, long long by)
{
    if (is_counting())
        atomic_fetch_add_explicit(&counted[what], by, memory_order_relaxed);
}

/* The same for a copy of all bytes of an array. */
void
count_copy(PyObject *array)
{
    long long nbytes = number(SLOT(array, Array_nbytes));
    count(COPIES, nbytes > 0);
    count(BYTES_COPIED, nbytes);
}

PyObject *
native_note_counting(PyObject *Py_UNUSED(module), PyObject *on)
{
    atomic_store(&counting, PyObject_IsTrue(on) == 1);
    Py_RETURN_NONE;
}

PyObject *
native_counts(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    PyObject *found = PyTuple_New(COUNTED);
    for (int i = 0; found != NULL && i < COUNTED; i++) {
        PyObject *value = PyLong_FromLongLong(atomic_load(&counted[i]));
        if (value == NULL)
            Py_CLEAR(found);
        else
            PyTuple_SET_ITEM(found, i, value);
    }
    return found;
}

/* What the module has by a name that it never changes; borrowed. */
static PyObject *
of_events(PyObject *name)
{
    return PyDict_GetItemWithError(events, name);
}

/* Find the user's code and the instruction it is at; the code is None if there is no user's code.
   NULL without an exception if Python must find them. */
static PyObject *
user_code(int *instruction)
{
    PyObject *code = NULL, *is_user = Py_False, *judged = of_events(named._is_user);
    PyFrameObject *frame = PyEval_GetFrame();
    Py_XINCREF(frame);
    *instruction = 0;
    while (frame != NULL && is_user == Py_False) {
        PyCodeObject *asked = PyFrame_GetCode(frame);
        PyFrameObject *back = NULL;
        is_user = PyDict_GetItemWithError(judged, asked->co_filename);
        if (is_user == Py_False)
            back = PyFrame_GetBack(frame);
        else if (is_user == Py_True && PyUnicode_Compare(asked->co_filename, threads_file)) {
            code = Py_NewRef((PyObject *)asked);
            *instruction = PyFrame_GetLasti(frame);
        }
        Py_DECREF(asked);
        Py_DECREF(frame);
        frame = back;
    }
    if (is_user == NULL || PyErr_Occurred()) {
        PyErr_Clear();
        Py_XDECREF(code);
        return NULL;
    }
    return code == NULL ? Py_NewRef(Py_None) : code;
}

/* Add a record to every active trace that keeps records. -1 with an exception set if it failed. */
static int
add(PyObject *record)
{
    PyObject *recording = find(events, named.recording);
    int failed = record == NULL;
    for (Py_ssize_t i = 0; !failed && i < PyTuple_GET_SIZE(recording); i++) {
        PyObject *records = PyObject_GetAttr(PyTuple_GET_ITEM(recording, i), named.records);
        failed = records == NULL || PyList_Append(records, record) < 0;
        Py_XDECREF(records);
    }
    Py_DECREF(recording);
    return failed ? -1 : 0;
}

/* `events.clock()`: a new reference, or NULL with an exception set. */
PyObject *
trace_time(void)
{
    PyObject *clock = find(events, named.clock), *now = PyObject_CallNoArgs(clock);
    Py_DECREF(clock);
    return now;
}

/* `events.since(start)`: a new reference, or NULL with an exception set. */
static PyObject *
since(PyObject *start)
{
    PyObject *now = trace_time(), *passed = NULL;
    if (now != NULL)
        passed = PyFloat_FromDouble(PyFloat_AsDouble(now) - PyFloat_AsDouble(start));
    Py_XDECREF(now);
    return passed;
}

/* `emit(kind, reason, path=path, at=here, nbytes=nbytes, start=start, seconds=seconds)`. Takes the
   references to `reason`, `here`, `nbytes` and `seconds`, which may be NULL, with an exception set.
   -1 with an exception set if it failed. */
static int
emit(PyObject *kind, PyObject *reason, PyObject *path, PyObject *here, PyObject *nbytes,
     PyObject *start, PyObject *seconds)
{
    PyObject *thread = NULL, *code = NULL, *made = NULL;
    int instruction, failed = 1;
    if (reason == NULL || here == NULL || nbytes == NULL || seconds == NULL)
        goto end;
    thread = PyObject_GetAttr(of_events(named._local), named.thread);
    if (thread == NULL || (code = user_code(&instruction)) == NULL) {
        PyErr_Clear();
        PyObject *given[] = {kind, reason, path, here, nbytes, start, seconds};
        made = PyObject_Vectorcall(of_events(named.emit), given, 2, names_given);
        failed = made == NULL;
    }
    else {
        PyObject *now = start == no_seconds ? trace_time() : Py_NewRef(start);
        PyObject *where = PyLong_FromLong(instruction);
        if (now != NULL && where != NULL)
            made = PyTuple_Pack(14, kind, reason, nbytes, word.nothing, zero, zero, path, now,
                                seconds, code, where, thread, here, nothing_awaited);
        failed = add(made) < 0;
        if (!failed && kind != word.done) /* as Python's `emit` does */
            count(kind == word.launch ? LAUNCHES : BARRIERS, 1);
        Py_XDECREF(now);
        Py_XDECREF(where);
    }
end:
    Py_XDECREF(made);
    Py_XDECREF(code);
    Py_XDECREF(thread);
    Py_XDECREF(reason);
    Py_XDECREF(here);
    Py_XDECREF(nbytes);
    Py_XDECREF(seconds);
    return failed ? -1 : 0;
}

/* The same for what takes no time that is measured. */
static int
emit_now(PyObject *kind, PyObject *reason, PyObject *path, PyObject *here)
{
    PyObject *nbytes = Py_NewRef(zero), *seconds = Py_NewRef(no_seconds);
    return emit(kind, reason, path, here, nbytes, no_seconds, seconds);
}

/* (lane.place, value, command): a new reference. */
static PyObject *
place(PyObject *lane, long long value, long long command)
{
    return Py_BuildValue("OLL", SLOT(lane, Lane_place), value, command);
}

/* `batch.here()` */
PyObject *
trace_place(PyObject *lane, PyObject *batch)
{
    return place(lane, number(SLOT(batch, Batch_value)), number(SLOT(batch, Batch_count)) + 1);
}

/* `batch.emit_barrier(behind)` */
int
trace_barrier(PyObject *behind, PyObject *here)
{
    PyObject *verb = SLOT(behind, Access_write) == Py_True ? word.write : word.read;
    PyObject *region = SLOT(behind, Access_region);
    PyObject *reason = PyTuple_Pack(6, word.after, verb, PyTuple_GET_ITEM(region, 0),
                                    PyTuple_GET_ITEM(region, 1), SLOT(behind, Access_what),
                                    SLOT(SLOT(behind, Access_lane), Lane_name));
    return emit_now(word.barrier, reason, word.device, Py_NewRef(here));
}

/* What `Launch.record` says of a launch; `uses` are of its arrays, and `start` is when the kernel was
   called, or NULL if no trace was active then. */
int
trace_launch(PyObject *kernel, PyObject *groups, PyObject *here, PyObject *const *uses,
             Py_ssize_t arrays, PyObject *start)
{
    long long bound = 0;
    for (Py_ssize_t i = 0; i < arrays; i++) {
        PyObject *region = PyTuple_GET_ITEM(uses[i], 1);
        bound += number(PyTuple_GET_ITEM(region, 1)) - number(PyTuple_GET_ITEM(region, 0));
    }
    PyObject *seconds = start == NULL ? Py_NewRef(no_seconds) : since(start);
    PyObject *nbytes = seconds == NULL ? NULL : PyLong_FromLongLong(bound);
    PyObject *reason = nbytes == NULL ? NULL : PyTuple_Pack(3, word.in_groups, kernel, groups);
    return emit(word.launch, reason, word.nothing, Py_NewRef(here), nbytes,
                start == NULL ? no_seconds : start, seconds);
}

/* What `Stream.poll` says when the device has come further. */
int
trace_done(PyObject *lane, long long reached)
{
    return emit_now(word.done, Py_NewRef(word.polled), word.nothing, place(lane, reached, 0));
}

/* A timestamp of the start of a command, if times are wanted: its number, or None. */
PyObject *
trace_begins(PyObject *batch)
{
    PyObject *timing = find(events, named.timing);
    int timed = PyTuple_GET_SIZE(timing) > 0;
    Py_DECREF(timing);
    return timed ? record_mark(SLOT(batch, Batch_recording), 0) : Py_NewRef(Py_None);
}

/* `batch.end_timing(began)`, for a command that began with a timestamp. */
int
trace_ends(PyObject *batch, PyObject *began, PyObject *here)
{
    PyObject *timing = find(events, named.timing), *ended = Py_NewRef(Py_None);
    int failed = 0;
    if (began != Py_None) {
        Py_SETREF(ended, record_mark(SLOT(batch, Batch_recording), 1));
        failed = ended == NULL;
    }
    if (!failed && ended != Py_None) {
        PyObject *mark = PyTuple_Pack(4, timing, here, began, ended);
        failed = mark == NULL || PyList_Append(SLOT(batch, Batch_marks), mark) < 0;
        Py_XDECREF(mark);
    }
    Py_DECREF(timing);
    Py_XDECREF(ended);
    return failed ? -1 : 0;
}

int
trace_is_ready(void)
{
    return events != NULL;
}

PyObject *
native_share_events(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *names, *file;
    if (!PyArg_ParseTuple(args, "O!U:share_events", &PyDict_Type, &names, &file))
        return NULL;
    PyObject *needed[] = {named.recording, named.clock,    named.timing,
                          named.emit,      named._is_user, named._local};
    for (size_t i = 0; i < Py_ARRAY_LENGTH(needed); i++)
        if (PyDict_GetItemWithError(names, needed[i]) == NULL)
            return PyErr_Format(PyExc_TypeError, "the module of events has no %U", needed[i]);
    Py_XSETREF(threads_file, Py_NewRef(file));
    Py_XSETREF(events, Py_NewRef(names));
    Py_RETURN_NONE;
}

PyObject *
native_note_traces(PyObject *Py_UNUSED(module), PyObject *active)
{
    traces_active = active == Py_True;
    Py_RETURN_NONE;
}

int
trace_setup(void)
{
    static const struct {
        PyObject **word;
        const char *text;
    } TEXTS[] = {
#define ROW(name, text) {&word.name, text},
        WORDS(ROW)
#undef ROW
    };
    for (size_t i = 0; i < Py_ARRAY_LENGTH(TEXTS); i++)
        if ((*TEXTS[i].word = PyUnicode_InternFromString(TEXTS[i].text)) == NULL)
            return -1;
    names_given = Py_BuildValue("sssss", "path", "at", "nbytes", "start", "seconds");
    zero = PyLong_FromLong(0);
    no_seconds = PyFloat_FromDouble(0);
    nothing_awaited = PyTuple_New(0);
    return names_given && zero && no_seconds && nothing_awaited ? 0 : -1;
}
