/* What a launch puts on the receipts of active traces, as Python does with `events.emit`.

   An event is one tuple, which `Trace` reads later. The Python function adds it where something is
   met for the first time: a thread, or a file of code. */

#include "layout.h"

static PyObject *events;       /* the names of `penstock.tracing.events` */
static PyObject *perf_counter; /* the clock of the events */
static PyObject *threads_file; /* of `threading`: what a thread runs below that is not the user's */
static PyObject *names_given;  /* in the call of `emit` */
static PyObject *zero, *no_seconds, *nothing_awaited;

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

/* What the module has by a name; borrowed. */
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

/* The traces that are active (`named.active`), or that want times (`named.timing`): a tuple, a new
   reference, because a thread that begins or ends a trace replaces it meanwhile. */
static PyObject *
traces(PyObject *name)
{
    PyObject *found;
#if PY_VERSION_HEX >= 0x030D0000
    if (PyDict_GetItemRef(events, name, &found) < 0)
        return NULL;
#else
    found = Py_XNewRef(of_events(name));
#endif
    return found;
}

/* Add a record to every active trace. -1 with an exception set if it failed. */
static int
add(PyObject *record)
{
    PyObject *active = traces(named.active);
    int failed = record == NULL || active == NULL;
    for (Py_ssize_t i = 0; !failed && i < PyTuple_GET_SIZE(active); i++) {
        PyObject *records = PyObject_GetAttr(PyTuple_GET_ITEM(active, i), named.records);
        failed = records == NULL || PyList_Append(records, record) < 0;
        Py_XDECREF(records);
    }
    Py_XDECREF(active);
    return failed ? -1 : 0;
}

/* `emit(kind, reason, path=path, at=here)`. Takes the references to `reason` and `here`; both may be
   NULL, with an exception set. -1 with an exception set if it failed. */
static int
emit(PyObject *kind, PyObject *reason, PyObject *path, PyObject *here)
{
    PyObject *thread = NULL, *code = NULL, *made = NULL;
    int instruction, failed = 1;
    if (reason == NULL || here == NULL)
        goto end;
    thread = PyObject_GetAttr(of_events(named._local), named.thread);
    if (thread == NULL || (code = user_code(&instruction)) == NULL) {
        PyErr_Clear();
        PyObject *given[] = {kind, reason, path, here};
        made = PyObject_Vectorcall(of_events(named.emit), given, 2, names_given);
        failed = made == NULL;
    }
    else {
        PyObject *now = PyObject_CallNoArgs(perf_counter), *where = PyLong_FromLong(instruction);
        if (now != NULL && where != NULL)
            made = PyTuple_Pack(14, kind, reason, zero, word.nothing, zero, zero, path, now,
                                no_seconds, code, where, thread, here, nothing_awaited);
        failed = add(made) < 0;
        Py_XDECREF(now);
        Py_XDECREF(where);
    }
end:
    Py_XDECREF(made);
    Py_XDECREF(code);
    Py_XDECREF(thread);
    Py_XDECREF(reason);
    Py_XDECREF(here);
    return failed ? -1 : 0;
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
    return emit(word.barrier, reason, word.device, Py_NewRef(here));
}

/* What `Launch.record` says of a launch. */
int
trace_launch(PyObject *kernel, PyObject *groups, PyObject *here)
{
    PyObject *reason = PyTuple_Pack(3, word.in_groups, kernel, groups);
    return emit(word.launch, reason, word.nothing, Py_NewRef(here));
}

/* What `Stream.poll` says when the device has come further. */
int
trace_done(PyObject *lane, long long reached)
{
    return emit(word.done, Py_NewRef(word.polled), word.nothing, place(lane, reached, 0));
}

/* `batch.command_began`, if times are wanted: the number of the timestamp, or None. */
PyObject *
trace_begins(PyObject *batch)
{
    PyObject *timing = traces(named.timing);
    Py_ssize_t wanted = timing == NULL ? -1 : PyTuple_GET_SIZE(timing);
    Py_XDECREF(timing);
    if (wanted == 0)
        Py_RETURN_NONE;
    return wanted < 0 ? NULL : record_mark(SLOT(batch, Batch_recording), 0);
}

/* `batch.end_timing()`, for a command that began with a timestamp. */
int
trace_ends(PyObject *batch, PyObject *began, PyObject *here)
{
    PyObject *timing = traces(named.timing), *ended = Py_NewRef(Py_None);
    int failed = timing == NULL;
    if (!failed && began != Py_None && PyTuple_GET_SIZE(timing)) {
        Py_SETREF(ended, record_mark(SLOT(batch, Batch_recording), 1));
        failed = ended == NULL;
    }
    if (!failed && ended != Py_None) {
        PyObject *mark = PyTuple_Pack(4, timing, here, began, ended);
        failed = mark == NULL || PyList_Append(SLOT(batch, Batch_marks), mark) < 0;
        Py_XDECREF(mark);
    }
    Py_XDECREF(timing);
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
    PyObject *names, *clock, *file;
    if (!PyArg_ParseTuple(args, "O!OU:share_events", &PyDict_Type, &names, &clock, &file))
        return NULL;
    PyObject *needed[] = {named.active, named.timing, named.emit, named._is_user, named._local};
    for (size_t i = 0; i < Py_ARRAY_LENGTH(needed); i++)
        if (PyDict_GetItemWithError(names, needed[i]) == NULL)
            return PyErr_Format(PyExc_TypeError, "the module of events has no %U", needed[i]);
    Py_XSETREF(perf_counter, Py_NewRef(clock));
    Py_XSETREF(threads_file, Py_NewRef(file));
    Py_XSETREF(events, Py_NewRef(names));
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
    names_given = Py_BuildValue("ss", "path", "at");
    zero = PyLong_FromLong(0);
    no_seconds = PyFloat_FromDouble(0);
    nothing_awaited = PyTuple_New(0);
    return names_given && zero && no_seconds && nothing_awaited ? 0 : -1;
}
