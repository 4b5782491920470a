/* The objects of the Python runtime that the native step reads and changes.

   They are Python objects of classes with __slots__. A slot is a pointer at a fixed distance from
   the object's start, which `share` learns from the class. So their layout is declared once, in
   Python, and each line of LAYOUT is a slot that this module touches. */

#ifndef PENSTOCK_LAYOUT_H
#define PENSTOCK_LAYOUT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of a binding: `driver.protocol.PLACE`. */
enum { PLACE = 24 };

#define LAYOUT(SLOT)                                                                               \
    SLOT(Lane, appended)                                                                           \
    SLOT(Lane, complete)                                                                           \
    SLOT(Lane, epoch)                                                                              \
    SLOT(Lane, name)                                                                               \
    SLOT(Lane, number)                                                                             \
    SLOT(Lane, owner)                                                                              \
    SLOT(Lane, place)                                                                              \
    SLOT(Lane, seen)                                                                               \
    SLOT(Lane, submitted)                                                                          \
    SLOT(Access, epoch)                                                                            \
    SLOT(Access, lane)                                                                             \
    SLOT(Access, region)                                                                           \
    SLOT(Access, value)                                                                            \
    SLOT(Access, what)                                                                             \
    SLOT(Access, write)                                                                            \
    SLOT(History, device_only)                                                                     \
    SLOT(History, many)                                                                            \
    SLOT(History, reads)                                                                           \
    SLOT(History, writes)                                                                          \
    SLOT(Backing, history)                                                                         \
    SLOT(Backing, host_reads)                                                                      \
    SLOT(Backing, host_writes)                                                                     \
    SLOT(Backing, unpublished)                                                                     \
    SLOT(Backing, views)                                                                           \
    SLOT(Buffer, backing)                                                                          \
    SLOT(Buffer, closed)                                                                           \
    SLOT(Buffer, guarded)                                                                          \
    SLOT(Buffer, policy)                                                                           \
    SLOT(Buffer, scheduler)                                                                        \
    SLOT(Array, accepted)                                                                          \
    SLOT(Array, bound)                                                                             \
    SLOT(Array, buffer)                                                                            \
    SLOT(Array, dtype)                                                                             \
    SLOT(Array, nbytes)                                                                            \
    SLOT(Array, region)                                                                            \
    SLOT(Array, seen_by_host)                                                                      \
    SLOT(Array, shape)                                                                             \
    SLOT(Bound, backing)                                                                           \
    SLOT(Bound, place)                                                                             \
    SLOT(Bound, reading)                                                                           \
    SLOT(Bound, texels)                                                                            \
    SLOT(Bound, writing)                                                                           \
    SLOT(KernelParameter, spare)                                                                   \
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
    SLOT(Stream, copies)                                                                           \
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
    SLOT(Scheduler, host_memory)                                                                   \
    SLOT(Scheduler, mutex)                                                                         \
    SLOT(Scheduler, plain)                                                                         \
    SLOT(Scheduler, ready)                                                                         \
    SLOT(Scheduler, shutdown)                                                                      \
    SLOT(Scheduler, sizes)                                                                         \
    SLOT(Scheduler, transfers)                                                                     \
    SLOT(Scheduler, views)                                                                         \
    SLOT(FinaliserQueue, left)                                                                     \
    SLOT(HostMemory, pieces)                                                                       \
    SLOT(HostViews, held)                                                                          \
    SLOT(Guest, points)                                                                            \
    SLOT(Guest, thread)                                                                            \
    SLOT(Shutdown, guests)                                                                         \
    SLOT(Shutdown, over)                                                                           \
    SLOT(Result, _finish)                                                                          \
    SLOT(Result, _memory)                                                                          \
    SLOT(Result, _points)                                                                          \
    SLOT(Result, _scheduler)                                                                       \
    SLOT(Result, _value)                                                                           \
    SLOT(Result, _what)                                                                            \
    SLOT(ResultPool, closed)                                                                       \
    SLOT(ResultPool, convert)                                                                      \
    SLOT(ResultPool, free)                                                                         \
    SLOT(ResultPool, one_number)                                                                   \
    SLOT(ResultPool, scheduler)                                                                    \
    SLOT(ResultMemory, _bytes)                                                                     \
    SLOT(ResultMemory, _content)                                                                   \
    SLOT(ResultMemory, _lane)                                                                      \
    SLOT(ResultMemory, _pool)                                                                      \
    SLOT(ResultMemory, _value)                                                                     \
    SLOT(ResultMemory, coherent)                                                                   \
    SLOT(ResultMemory, home)                                                                       \
    SLOT(ResultMemory, place)                                                                      \
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
    SLOT(PrimaryCommands, _times)                                                                  \
    SLOT(PrimaryCommands, _unfinished)                                                             \
    SLOT(Timestamps, base)                                                                         \
    SLOT(Timestamps, count)                                                                        \
    SLOT(Timestamps, native)                                                                       \
    SLOT(VulkanProgram, native)                                                                    \
    SLOT(VulkanQueue, _results)                                                                    \
    SLOT(VulkanQueue, _submitting)                                                                 \
    SLOT(VulkanQueue, _waited)                                                                     \
    SLOT(VulkanQueue, native)                                                                      \
    SLOT(VulkanTimeline, _driver)                                                                  \
    SLOT(VulkanTimeline, issued)                                                                   \
    SLOT(VulkanTimeline, native)                                                                   \
    SLOT(VulkanDriver, backlog)                                                                    \
    SLOT(VulkanDriver, generation)                                                                 \
    SLOT(Backlog, queues)

#define CLASSES(CLASS)                                                                             \
    CLASS(Lane) CLASS(Access) CLASS(History) CLASS(Backing) CLASS(Buffer) CLASS(Array)             \
    CLASS(Bound) CLASS(KernelParameter) CLASS(Batch) CLASS(Stream) CLASS(SubmitPolicy)             \
    CLASS(Scheduler) CLASS(FinaliserQueue) CLASS(HostMemory) CLASS(HostViews) CLASS(Shutdown)      \
    CLASS(Guest) CLASS(Result) CLASS(ResultPool) CLASS(ResultMemory) CLASS(VulkanRecording)        \
    CLASS(Commands) CLASS(PrimaryCommands) CLASS(VulkanProgram) CLASS(VulkanQueue)                 \
    CLASS(VulkanTimeline) CLASS(VulkanDriver) CLASS(Backlog) CLASS(Timestamps)             \
    CLASS(HipTimeline) CLASS(OutOfMemory)

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

/* --- slots -------------------------------------------------------------------------------------

   A slot is changed under the device's lock, but for the few that `number_in` is for, and Python
   code also reads slots without the lock. A reader of a free-threaded Python takes a reference while
   another thread replaces the value, so a value is replaced in the object's critical section, as by
   Python itself. With a GIL a critical section is nothing. */

#ifndef Py_BEGIN_CRITICAL_SECTION /* before Python 3.13 */
#define Py_BEGIN_CRITICAL_SECTION(object) {
#define Py_END_CRITICAL_SECTION() }
#endif

/* What is in a slot: a borrowed reference, good while nothing replaces it. */
static inline PyObject *
slot_of(const void *object, Py_ssize_t offset)
{
    PyObject *const *slot = (PyObject *const *)((const char *)object + offset);
#ifdef Py_GIL_DISABLED
    return __atomic_load_n(slot, __ATOMIC_ACQUIRE);
#else
    return *slot;
#endif
}

#define SLOT(object, name) slot_of(object, at.name)

/* Replace what is in a slot, within the object's critical section; returns what was there, for the
   caller to give up outside of it. */
static inline PyObject *
swap(PyObject *object, Py_ssize_t offset, PyObject *value)
{
    PyObject **slot = (PyObject **)((char *)object + offset), *old = *slot;
    Py_INCREF(value);
#ifdef Py_GIL_DISABLED
    __atomic_store_n(slot, value, __ATOMIC_RELEASE);
#else
    *slot = value;
#endif
    return old;
}

static inline void
put_in(PyObject *object, Py_ssize_t offset, PyObject *value)
{
    PyObject *old;
    if (slot_of(object, offset) == value)
        return; /* references to what threads share cost them most */
    Py_BEGIN_CRITICAL_SECTION(object);
    old = swap(object, offset, value);
    Py_END_CRITICAL_SECTION();
    Py_XDECREF(old);
}

/* Put a value into a slot, which gets a reference of its own. */
#define put(object, name, value) put_in(object, at.name, value)

/* A count of the runtime's; -1, which no count is, if the object is not a small number. */
static inline long long
number(PyObject *object)
{
    if (object == NULL || !PyLong_Check(object))
        return -1;
#if PY_VERSION_HEX >= 0x030C0000
    if (PyUnstable_Long_IsCompact((PyLongObject *)object))
        return PyUnstable_Long_CompactValue((PyLongObject *)object);
#else
    if (Py_SIZE(object) == 1)
        return ((PyLongObject *)object)->ob_digit[0];
#endif
    int overflow;
    return PyLong_AsLongLongAndOverflow(object, &overflow);
}

static inline PyObject *
reference_in_slot(PyObject *object, Py_ssize_t offset)
{
    PyObject *found;
    Py_BEGIN_CRITICAL_SECTION(object);
    found = Py_XNewRef(slot_of(object, offset));
    Py_END_CRITICAL_SECTION();
    return found;
}

/* A new reference to what is in a slot that a thread may change meanwhile; NULL if it is empty. */
#define reference_in(object, name) reference_in_slot(object, at.name)

static inline long long
number_in_slot(PyObject *object, Py_ssize_t offset)
{
    long long found;
    Py_BEGIN_CRITICAL_SECTION(object);
    found = number(slot_of(object, offset));
    Py_END_CRITICAL_SECTION();
    return found;
}

/* The number in a slot that a thread may change without the device's lock, or that is read without
   it: in the critical section, nothing frees the number while it is read. */
#define number_in(object, name) number_in_slot(object, at.name)

/* Put a number into a slot; -1 with an exception set if there is no memory for it. */
static inline int
put_number_in(PyObject *object, Py_ssize_t offset, long long value)
{
    PyObject *made = PyLong_FromLongLong(value);
    if (made == NULL)
        return -1;
    put_in(object, offset, made);
    Py_DECREF(made);
    return 0;
}

#define put_number(object, name, value) put_number_in(object, at.name, value)

/* What a dict that other threads change has for a key; a new reference, or NULL. */
static inline PyObject *
find(PyObject *dict, PyObject *key)
{
    PyObject *found;
#if PY_VERSION_HEX >= 0x030D0000
    PyDict_GetItemRef(dict, key, &found);
#else
    found = Py_XNewRef(PyDict_GetItemWithError(dict, key));
#endif
    PyErr_Clear();
    return found;
}

/* Call a method of these arguments' first; -1 with an exception set if it failed. */
static inline int
call_method(PyObject *name, PyObject *const *arguments, size_t count)
{
    PyObject *done = PyObject_VectorcallMethod(name, arguments, count, NULL);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* An exception that is set aside while something else is done; `error` is NULL if there is none. */
typedef struct {
    PyObject *kind, *error, *traceback;
} Raised;

static inline Raised
set_aside(void)
{
    Raised aside = {NULL, NULL, NULL};
#if PY_VERSION_HEX >= 0x030C0000
    aside.error = PyErr_GetRaisedException();
#else
    PyErr_Fetch(&aside.kind, &aside.error, &aside.traceback);
    if (aside.kind != NULL)
        PyErr_NormalizeException(&aside.kind, &aside.error, &aside.traceback);
#endif
    return aside;
}

static inline void
raise_again(Raised aside)
{
#if PY_VERSION_HEX >= 0x030C0000
    PyErr_SetRaisedException(aside.error);
#else
    PyErr_Restore(aside.kind, aside.error, aside.traceback);
#endif
}

static inline void
drop_raised(Raised raised)
{
    Py_XDECREF(raised.kind);
    Py_XDECREF(raised.error);
    Py_XDECREF(raised.traceback);
}

/* Names of Python methods and attributes, interned. */
#define METHODS(NAME)                                                                              \
    NAME(__call__) NAME(_consider_submitting) NAME(_is_user) NAME(_local) NAME(_start)             \
    NAME(append) NAME(barrier) NAME(begin) NAME(clock) NAME(copy) NAME(dispatch) NAME(dtype)       \
    NAME(emit) NAME(end) NAME(flags) NAME(groups) NAME(host_writes) NAME(mark) NAME(new)           \
    NAME(note) NAME(note_failure) NAME(pop) NAME(publish) NAME(read) NAME(recording)               \
    NAME(records) NAME(shape)                                                                      \
    NAME(stream) NAME(submit) NAME(tear_down) NAME(thread) NAME(threads) NAME(timing)              \
    NAME(under_lock) NAME(value) NAME(writeable)

typedef struct {
#define DECLARE(name) PyObject *name;
    METHODS(DECLARE)
#undef DECLARE
} Names;

extern Names named;
extern PyObject *nothing;
extern PyTypeObject Callable_Type, Lock_Type, Recorder_Type, Program_Type, Timeline_Type,
    Queue_Type, Stamps_Type;

/* A number that an object has by a name; -1 if it has none. */
static inline long long
number_of(PyObject *object, PyObject *name)
{
    PyObject *found = PyObject_GetAttr(object, name);
    long long value = number(found);
    Py_XDECREF(found);
    return value;
}

/* lock.c */
int lock_taken(PyObject *scheduler, Py_ssize_t condition);
void lock_left(PyObject *scheduler);

/* ledger.c */
int regions_overlap(PyObject *a, PyObject *b);
int ledger_needs(PyObject *lane, PyObject *use, PyObject **behind);
int ledger_note(PyObject *lane, PyObject *use, PyObject *value, PyObject *what);

/* recorder.c: what the driver does. Other drivers than Vulkan's are called as Python calls them.
   Of three outcomes, 1 is done, 0 is for Python to do, and -1 has failed, with an exception set. */
int record_barrier(PyObject *recording);
int record_dispatch(PyObject *recording, PyObject *program, PyObject *bindings, PyObject *block,
                    PyObject *groups);
PyObject *record_mark(PyObject *recording, int end);
int recording_begins(PyObject *recording);
int recording_publishes(PyObject *recording);
int recording_ends(PyObject *recording);
int queue_submits(PyObject *queue, PyObject *recording, PyObject *timeline, PyObject *value);
int timeline_reached(PyObject *timeline, long long *reached);
int timeline_comes(PyObject *timeline, long long value);

/* trace.c: what receipts get, and what is counted while one counts; see `tracing/counting.py` */
enum { LAUNCHES, BARRIERS, SUBMISSIONS, WAITS, COPIES, BYTES_COPIED, COUNTED };
void count(int what, long long by);
void count_copy(PyObject *array);
int is_counting(void);
PyObject *native_note_counting(PyObject *module, PyObject *on);
PyObject *native_counts(PyObject *module, PyObject *ignored);
PyObject *trace_place(PyObject *lane, PyObject *batch);
int trace_barrier(PyObject *behind, PyObject *here);
extern atomic_int traces_active; /* whether a trace is active */
PyObject *trace_time(void);
int trace_launch(PyObject *kernel, PyObject *groups, PyObject *here, PyObject *const *uses,
                 Py_ssize_t arrays, PyObject *start);
int trace_done(PyObject *lane, long long reached);
PyObject *trace_begins(PyObject *batch);
int trace_ends(PyObject *batch, PyObject *began, PyObject *here);
int trace_is_ready(void);
int trace_setup(void);
PyObject *native_share_events(PyObject *module, PyObject *args);
PyObject *native_note_traces(PyObject *module, PyObject *active);

/* call.c */
PyObject *native_launches(PyObject *module, PyObject *ignored);
PyObject *native_left(PyObject *module, PyObject *ignored);

/* result.c */
PyObject *result_new(PyObject *pool, PyObject *what);
int result_launched(PyObject *result, PyObject *lane, PyObject *value);
PyObject *native_result(PyObject *module, PyObject *result);

/* host.c */
int array_fits(PyObject *array, PyObject *host);
int host_waits(PyObject *scheduler, PyObject *lane, PyObject *value);
PyObject *native_synchronize(PyObject *module, PyObject *stream);
PyObject *native_read(PyObject *module, PyObject *array);
PyObject *native_write(PyObject *module, PyObject *const *args, Py_ssize_t count);

/* carry.c */
typedef struct {
    PyObject *host, *parameter; /* borrowed */
    int back;                   /* whether the kernel writes it */
    PyObject *array;            /* the temporary, from `carry_in` to `carry_ends` */
    Py_ssize_t place;           /* of the temporary among those of the parameter */
} Carried;
int carry_in(PyObject *scheduler, Carried *carried, Py_ssize_t count);
int carry_back(PyObject *scheduler, PyObject *lane, PyObject *value, Carried *carried,
               Py_ssize_t count);
void carry_ends(PyObject *scheduler, Carried *carried, Py_ssize_t count, int launched);

/* stream.c */
PyObject *stream_batch(PyObject *stream);
int stream_consider(PyObject *stream, PyObject *batch);
int stream_submits(PyObject *stream);
int stream_polls(PyObject *stream);
int policy_opened(PyObject *policy, PyObject *batch);
int is_plain_wait(PyObject *scheduler);
int await_point(PyObject *scheduler, PyObject *stream, PyObject *value, int counted);
PyObject *guest_enters(PyObject *scheduler, PyObject *points);
int guest_leaves(PyObject *scheduler, PyObject *guest);
PyObject *native_start(PyObject *module, PyObject *stream);
PyObject *native_submit(PyObject *module, PyObject *stream);
PyObject *native_poll(PyObject *module, PyObject *stream);
PyObject *native_reach(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *native_wait(PyObject *module, PyObject *const *args, Py_ssize_t count);

#endif
