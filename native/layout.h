/* The objects of the Python runtime that the native step reads and changes.

   They are Python objects of classes with __slots__. A slot is a pointer at a fixed distance from
   the object's start, which `share` learns from the class. So their layout is declared once, in
   Python, and each line of LAYOUT is a slot that this module touches. */

#ifndef PENSTOCK_LAYOUT_H
#define PENSTOCK_LAYOUT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdint.h>

#define LAYOUT(SLOT)                                                                               \
    SLOT(Lane, appended)                                                                           \
    SLOT(Lane, complete)                                                                           \
    SLOT(Lane, epoch)                                                                              \
    SLOT(Lane, number)                                                                             \
    SLOT(Lane, owner)                                                                              \
    SLOT(Lane, seen)                                                                               \
    SLOT(Lane, submitted)                                                                          \
    SLOT(Access, epoch)                                                                            \
    SLOT(Access, lane)                                                                             \
    SLOT(Access, region)                                                                           \
    SLOT(Access, value)                                                                            \
    SLOT(Access, what)                                                                             \
    SLOT(History, device_only)                                                                     \
    SLOT(History, many)                                                                            \
    SLOT(History, reads)                                                                           \
    SLOT(History, writes)                                                                          \
    SLOT(Backing, views)                                                                           \
    SLOT(Buffer, backing)                                                                          \
    SLOT(Buffer, closed)                                                                           \
    SLOT(Buffer, guarded)                                                                          \
    SLOT(Array, accepted)                                                                          \
    SLOT(Array, bound)                                                                             \
    SLOT(Array, buffer)                                                                            \
    SLOT(Bound, backing)                                                                           \
    SLOT(Bound, place)                                                                             \
    SLOT(Bound, reading)                                                                           \
    SLOT(Bound, writing)                                                                           \
    SLOT(Batch, count)                                                                             \
    SLOT(Batch, look_at)                                                                           \
    SLOT(Batch, marks)                                                                             \
    SLOT(Batch, must_publish)                                                                      \
    SLOT(Batch, open)                                                                              \
    SLOT(Batch, recording)                                                                         \
    SLOT(Batch, value)                                                                             \
    SLOT(Stream, _batch)                                                                           \
    SLOT(Stream, _closed)                                                                          \
    SLOT(Stream, _in_flight)                                                                       \
    SLOT(Stream, _policy)                                                                          \
    SLOT(Stream, _spare)                                                                           \
    SLOT(Stream, _waits)                                                                           \
    SLOT(Stream, deep)                                                                             \
    SLOT(Stream, lane)                                                                             \
    SLOT(Stream, plain)                                                                            \
    SLOT(Stream, published)                                                                        \
    SLOT(Stream, queue)                                                                            \
    SLOT(Stream, scheduler)                                                                        \
    SLOT(Stream, timeline)                                                                         \
    SLOT(SubmitPolicy, _blocks)                                                                    \
    SLOT(SubmitPolicy, first_look)                                                                 \
    SLOT(Scheduler, ended)                                                                         \
    SLOT(Scheduler, plain)                                                                         \
    SLOT(Scheduler, shutdown)                                                                      \
    SLOT(Scheduler, views)                                                                         \
    SLOT(FinaliserQueue, left)                                                                     \
    SLOT(HostViews, held)                                                                          \
    SLOT(Shutdown, guests)                                                                         \
    SLOT(Shutdown, over)                                                                           \
    SLOT(Result, _memory)                                                                          \
    SLOT(ResultMemory, handle)                                                                     \
    SLOT(ResultMemory, offset)                                                                     \
    SLOT(ResultMemory, use)                                                                        \
    SLOT(VulkanRecording, _commands)                                                               \
    SLOT(VulkanRecording, _content)                                                                \
    SLOT(VulkanRecording, _driver)                                                                 \
    SLOT(VulkanRecording, _ended)                                                                  \
    SLOT(VulkanRecording, _first)                                                                  \
    SLOT(VulkanRecording, _published)                                                              \
    SLOT(VulkanRecording, _started)                                                                \
    SLOT(Commands, _bindings)                                                                      \
    SLOT(Commands, _program)                                                                       \
    SLOT(Commands, _pushed)                                                                        \
    SLOT(Commands, _sets)                                                                          \
    SLOT(Commands, native)                                                                         \
    SLOT(PrimaryCommands, _end_results)                                                            \
    SLOT(PrimaryCommands, _timed)                                                                  \
    SLOT(PrimaryCommands, _unfinished)                                                             \
    SLOT(VulkanProgram, native)                                                                    \
    SLOT(VulkanQueue, _results)                                                                    \
    SLOT(VulkanQueue, _submitting)                                                                 \
    SLOT(VulkanQueue, _waited)                                                                     \
    SLOT(VulkanQueue, native)                                                                      \
    SLOT(VulkanTimeline, issued)                                                                   \
    SLOT(VulkanTimeline, native)                                                                   \
    SLOT(VulkanDriver, backlog)                                                                    \
    SLOT(VulkanDriver, generation)                                                                 \
    SLOT(Backlog, queues)

#define CLASSES(CLASS)                                                                             \
    CLASS(Lane) CLASS(Access) CLASS(History) CLASS(Backing) CLASS(Buffer) CLASS(Array)             \
    CLASS(Bound) CLASS(Batch) CLASS(Stream) CLASS(SubmitPolicy) CLASS(Scheduler)                   \
    CLASS(FinaliserQueue) CLASS(HostViews) CLASS(Shutdown) CLASS(Guest) CLASS(Result)              \
    CLASS(ResultMemory) CLASS(VulkanRecording) CLASS(Commands) CLASS(PrimaryCommands)              \
    CLASS(VulkanProgram) CLASS(VulkanQueue) CLASS(VulkanTimeline) CLASS(VulkanDriver)              \
    CLASS(Backlog) CLASS(HipTimeline) CLASS(OutOfMemory)

/* Where each slot is, in bytes. */
typedef struct {
#define DECLARE(class, slot) Py_ssize_t class##_##slot;
    LAYOUT(DECLARE)
#undef DECLARE
} Offsets;

/* The classes themselves; NULL until they are shared. */
typedef struct {
#define DECLARE(class) PyTypeObject *class;
    CLASSES(DECLARE)
#undef DECLARE
} Classes;

extern Offsets at;
extern Classes is;

#define SLOT(object, name) (*(PyObject **)((char *)(object) + at.name))

/* Put a value into a slot, which gets a reference of its own. */
static inline void
put(PyObject **slot, PyObject *value)
{
    PyObject *old = *slot;
    Py_INCREF(value);
    *slot = value;
    Py_XDECREF(old);
}

/* A count of the runtime's; -1, which no count is, if the object is not a small number. */
static inline long long
number(PyObject *object)
{
    if (object == NULL || !PyLong_Check(object))
        return -1;
    int overflow;
    return PyLong_AsLongLongAndOverflow(object, &overflow);
}

/* Put a number into a slot; -1 with an exception set if there is no memory for it. */
static inline int
put_number(PyObject **slot, long long value)
{
    PyObject *made = PyLong_FromLongLong(value);
    if (made == NULL)
        return -1;
    put(slot, made);
    Py_DECREF(made);
    return 0;
}

/* Call a method of these arguments' first; -1 with an exception set if it failed. */
static inline int
call_method(PyObject *name, PyObject *const *arguments, size_t count)
{
    PyObject *done = PyObject_VectorcallMethod(name, arguments, count, NULL);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* An exception that is set aside; `error` is NULL if there is none. */
typedef struct {
    PyObject *kind, *error, *traceback;
} Raised;

static inline Raised
take_raised(void)
{
    Raised raised = {NULL, NULL, NULL};
#if PY_VERSION_HEX >= 0x030C0000
    raised.error = PyErr_GetRaisedException();
#else
    PyErr_Fetch(&raised.kind, &raised.error, &raised.traceback);
    if (raised.kind != NULL)
        PyErr_NormalizeException(&raised.kind, &raised.error, &raised.traceback);
#endif
    return raised;
}

static inline void
raise_again(Raised raised)
{
#if PY_VERSION_HEX >= 0x030C0000
    PyErr_SetRaisedException(raised.error);
#else
    PyErr_Restore(raised.kind, raised.error, raised.traceback);
#endif
}

static inline void
drop_raised(Raised raised)
{
    Py_XDECREF(raised.kind);
    Py_XDECREF(raised.error);
    Py_XDECREF(raised.traceback);
}

/* Names of Python methods, interned. */
#define METHODS(NAME)                                                                              \
    NAME(__call__) NAME(_consider_submitting) NAME(_start) NAME(barrier) NAME(begin)               \
    NAME(dispatch) NAME(groups) NAME(launched) NAME(new) NAME(note) NAME(note_failure)             \
    NAME(publish) NAME(stream) NAME(submit) NAME(tear_down) NAME(threads) NAME(value)

typedef struct {
#define DECLARE(name) PyObject *name;
    METHODS(DECLARE)
#undef DECLARE
} Names;

extern Names named;
extern PyObject *nothing;
extern PyTypeObject Callable_Type, Recorder_Type, Program_Type, Timeline_Type, Queue_Type;

/* ledger.c */
int ledger_needs(PyObject *lane, PyObject *use, int *barrier);
int ledger_note(PyObject *lane, PyObject *use, PyObject *value, PyObject *what);

/* recorder.c: what the driver does. Other drivers than Vulkan's are called as Python calls them.
   Of three outcomes, 1 is done, 0 is for Python to do, and -1 has failed, with an exception set. */
int record_barrier(PyObject *recording);
int record_dispatch(PyObject *recording, PyObject *program, PyObject *bindings, PyObject *block,
                    PyObject *groups);
int recording_begins(PyObject *recording);
int recording_publishes(PyObject *recording);
int recording_ends(PyObject *recording);
int queue_submits(PyObject *queue, PyObject *recording, PyObject *timeline, PyObject *value);
int timeline_reached(PyObject *timeline, long long *reached);
int timeline_comes_soon(PyObject *timeline, long long value);

/* call.c */
PyObject *native_launches(PyObject *module, PyObject *ignored);

/* stream.c */
PyObject *stream_batch(PyObject *stream);
int stream_consider(PyObject *stream, PyObject *batch);
PyObject *native_start(PyObject *module, PyObject *stream);
PyObject *native_submit(PyObject *module, PyObject *stream);
PyObject *native_poll(PyObject *module, PyObject *stream);
PyObject *native_wait(PyObject *module, PyObject *const *args, Py_ssize_t count);

#endif
