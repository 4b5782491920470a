/* Commands of Vulkan, as `penstock.driver.vulkan.commands` records them, in one step each. */

#include "layout.h"

#ifdef _WIN32
#include <windows.h>
#else
#include <sched.h>
#include <time.h>
#endif
#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

/* The parts of Vulkan's interface that are used here, by the names and types of its headers. */
typedef void (*BindPipeline)(void *command, uint32_t point, uint64_t pipeline);
typedef void (*PushConstants)(void *command, uint64_t layout, uint32_t stages, uint32_t offset,
                              uint32_t size, const void *values);
typedef void (*PushDescriptors)(void *command, uint64_t template, uint64_t layout, uint32_t set,
                                const void *data);
typedef void (*Dispatch)(void *command, uint32_t x, uint32_t y, uint32_t z);
typedef void (*Barrier)(void *command, const void *dependency);
typedef void (*WriteTimestamp)(void *command, uint32_t stage, uint64_t pool, uint32_t query);
typedef int32_t (*Begin)(void *command, const void *info);
typedef int32_t (*End)(void *command);
typedef int32_t (*Submit)(void *queue, uint32_t count, const void *infos, uint64_t fence);
typedef int32_t (*GetValue)(void *device, uint64_t semaphore, uint64_t *value);
typedef int32_t (*Wait)(void *device, const void *info, uint64_t nanoseconds);

typedef struct {
    uint32_t type;
    const void *next;
    uint32_t flags, count;
    const uint64_t *semaphores, *values;
} WaitInfo;

typedef struct {
    uint32_t type;
    const void *next;
    uint32_t waits;
    const uint64_t *wait_semaphores;
    const uint32_t *wait_stages;
    uint32_t count;
    const void *commands; /* VkCommandBuffer[count] */
    uint32_t signals;
    const uint64_t *signal_semaphores;
} SubmitInfo;

enum { COMPUTE_POINT = 1, COMPUTE_STAGE = 0x20, WAIT_INFO = 1000207004 };
enum { TOP = 0x1, BOTTOM = 0x2000, ROOM = 512 }; /* of timestamps: as in `clock` */

_Static_assert(sizeof(void *) == 8, "handles and addresses are 64 bits");

/* What the native step knows of objects of the driver: handles, and addresses of functions and
   structures. Python makes them, with every part by its name. */

#define RECORDER(PART)                                                                             \
    PART(void *, command)                                                                          \
    PART(const void *, commands) /* an array with the command buffer in it */                      \
    PART(const void *, between)  /* the VkDependencyInfo of a barrier between commands */          \
    PART(const void *, to_host)  /* of one that makes writes visible to the host */                \
    PART(const void *, info)     /* the VkCommandBufferBeginInfo */                                \
    PART(Begin, begin)                                                                             \
    PART(End, end)                                                                                 \
    PART(BindPipeline, bind)                                                                       \
    PART(PushConstants, push)                                                                      \
    PART(PushDescriptors, describe)                                                                \
    PART(Dispatch, dispatch)                                                                       \
    PART(Barrier, barrier)

#define PROGRAM(PART)                                                                              \
    PART(uint64_t, pipeline) PART(uint64_t, layout) PART(uint64_t, template) PART(uint64_t, slots)

#define QUEUE(PART)                                                                                \
    PART(void *, queue)                                                                            \
    PART(Submit, submit)                                                                           \
    PART(SubmitInfo *, info)                                                                       \
    PART(uint64_t *, signal_semaphore)                                                             \
    PART(uint64_t *, signal_value)

#define STAMPS(PART) PART(uint64_t, pool) PART(WriteTimestamp, write)

#define TIMELINE(PART)                                                                             \
    PART(void *, device) PART(uint64_t, semaphore) PART(GetValue, get) PART(Wait, wait)

#define MEMBER(type, name) type name;
#define NAME(type, name) #name,
#define HANDLES(Kind, PARTS, text)                                                                 \
    typedef struct {                                                                               \
        PyObject_HEAD                                                                              \
        PARTS(MEMBER)                                                                              \
    } Kind;                                                                                        \
    static PyObject *Kind##_new(PyTypeObject *type, PyObject *args, PyObject *keywords)            \
    {                                                                                              \
        static const char *const names[] = {PARTS(NAME) NULL};                                     \
        (void)args;                                                                                \
        return handles_new(type, keywords, names);                                                 \
    }                                                                                              \
    PyTypeObject Kind##_Type = {                                                                   \
        PyVarObject_HEAD_INIT(NULL, 0)                                                             \
        .tp_name = "penstock._native." #Kind,                                                      \
        .tp_doc = text,                                                                            \
        .tp_basicsize = sizeof(Kind),                                                              \
        .tp_flags = Py_TPFLAGS_DEFAULT,                                                            \
        .tp_new = Kind##_new,                                                                      \
    };

/* An object with a number for each name, in this order behind the head. */
static PyObject *
handles_new(PyTypeObject *type, PyObject *keywords, const char *const *names)
{
    PyObject *made = type->tp_alloc(type, 0);
    if (made == NULL)
        return NULL;
    uint64_t *part = (uint64_t *)((char *)made + sizeof(PyObject));
    for (; made != NULL && *names != NULL; names++, part++) {
        PyObject *name = PyUnicode_FromString(*names), *given = NULL;
        if (name != NULL && keywords != NULL)
            given = PyDict_GetItemWithError(keywords, name);
        Py_XDECREF(name);
        if (given != NULL)
            *part = PyLong_AsUnsignedLongLong(given);
        else if (!PyErr_Occurred())
            PyErr_Format(PyExc_TypeError, "%s needs %s", type->tp_name, *names);
        if (PyErr_Occurred())
            Py_CLEAR(made);
    }
    return made;
}

HANDLES(Recorder, RECORDER, "A command buffer, and the functions that record into it.")
HANDLES(Program, PROGRAM, "A pipeline, and what is bound with it.")
HANDLES(Queue, QUEUE, "A queue, and the structures in which a submission is described.")
HANDLES(Stamps, STAMPS, "A pool of timestamps, and the function that writes one.")
HANDLES(Timeline, TIMELINE, "A timeline semaphore, and the functions that read it and wait for it.")

PyObject *nothing; /* an empty tuple: what a submission waits for on other timelines */

static double
now(void)
{
#ifdef _WIN32
    LARGE_INTEGER ticks, frequency;
    QueryPerformanceCounter(&ticks);
    QueryPerformanceFrequency(&frequency);
    return (double)ticks.QuadPart / (double)frequency.QuadPart;
#else
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
#endif
}

/* As `_MOMENT` of the Python code: about the cost of sleeping and waking. */
static double
moment_from_now(void)
{
    return now() + 1e-4;
}

/* As `_SLICE` of the Python code, in nanoseconds: then it looks for signals and a lost device. */
static const uint64_t SLICE = 100000000;

/* Let the core rest for about a microsecond, which leaves the timeline's lock to the driver's thread;
   at every eighth turn let another thread have the core, which that thread may need. */
static void
rest(unsigned turn)
{
    for (int i = 0; i < 40; i++) {
#if defined(__x86_64__) || defined(_M_X64)
        _mm_pause();
#elif defined(__aarch64__)
        __asm__ volatile("yield");
#endif
    }
    if (turn % 8 == 7) {
#ifdef _WIN32
        SwitchToThread();
#else
        sched_yield();
#endif
    }
}

/* The commands of a recording if they are recorded natively, else NULL. */
static PyObject *
native_commands(PyObject *recording)
{
    if (Py_TYPE(recording) != is.VulkanRecording)
        return NULL;
    PyObject *commands = SLOT(recording, VulkanRecording__commands);
    return Py_TYPE(SLOT(commands, Commands_native)) == &Recorder_Type ? commands : NULL;
}

/* `recording.barrier()` */
int
record_barrier(PyObject *recording)
{
    PyObject *commands = native_commands(recording);
    if (commands == NULL || SLOT(recording, VulkanRecording__started) != Py_True) {
        PyObject *arguments[] = {recording};
        return call_method(named.barrier, arguments, 1);
    }
    Recorder *recorder = (Recorder *)SLOT(commands, Commands_native);
    recorder->barrier(recorder->command, recorder->between);
    return 0;
}

/* Whether two tuples hold equal numbers. */
static int
same_numbers(PyObject *a, PyObject *b)
{
    if (!PyTuple_CheckExact(b) || PyTuple_GET_SIZE(a) != PyTuple_GET_SIZE(b))
        return 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(a); i++) {
        PyObject *left = PyTuple_GET_ITEM(a, i), *right = PyTuple_GET_ITEM(b, i);
        if (left != right && PyLong_AsUnsignedLongLong(left) != PyLong_AsUnsignedLongLong(right))
            return 0;
    }
    return 1;
}

static int
same_bytes(PyObject *a, PyObject *b)
{
    return a == b || (PyBytes_CheckExact(b) && PyBytes_GET_SIZE(a) == PyBytes_GET_SIZE(b) &&
                      memcmp(PyBytes_AS_STRING(a), PyBytes_AS_STRING(b),
                             (size_t)PyBytes_GET_SIZE(a)) == 0);
}

/* Whether what is bound for a program, if any, stays bound for one with this layout. */
static int
has_layout(PyObject *program, uint64_t layout)
{
    if (Py_TYPE(program) != is.VulkanProgram)
        return 0;
    Program *native = (Program *)SLOT(program, VulkanProgram_native);
    return Py_TYPE(native) == &Program_Type && native->layout == layout;
}

/* `Commands.bind` and a dispatch: bind what is not bound yet, and dispatch. Nothing here can fail. */
static void
launch(PyObject *commands, PyObject *program, PyObject *bindings, PyObject *block,
       PyObject *groups)
{
    Recorder *recorder = (Recorder *)SLOT(commands, Commands_native);
    Program *native = (Program *)SLOT(program, VulkanProgram_native);
    void *command = recorder->command;
    PyObject *before = SLOT(commands, Commands__program);
    if (before != program) {
        if (!has_layout(before, native->layout)) {
            put(commands, Commands__bindings, Py_None);
            put(commands, Commands__pushed, Py_None);
        }
        recorder->bind(command, COMPUTE_POINT, native->pipeline);
        put(commands, Commands__program, program);
    }
    if (!same_bytes(bindings, SLOT(commands, Commands__bindings))) {
        if (native->slots)
            recorder->describe(command, native->template, native->layout, 0,
                               PyBytes_AS_STRING(bindings));
        put(commands, Commands__bindings, bindings);
    }
    if (PyBytes_GET_SIZE(block) && !same_bytes(block, SLOT(commands, Commands__pushed))) {
        recorder->push(command, native->layout, COMPUTE_STAGE, 0, (uint32_t)PyBytes_GET_SIZE(block),
                       PyBytes_AS_STRING(block));
        put(commands, Commands__pushed, block);
    }
    uint32_t counts[3];
    for (int i = 0; i < 3; i++)
        counts[i] = (uint32_t)number(PyTuple_GET_ITEM(groups, i));
    recorder->dispatch(command, counts[0], counts[1], counts[2]);
}

/* Whether this module can record launches of a program: with push descriptors, and not too many. */
static int
is_native_program(PyObject *program, PyObject *bindings)
{
    if (Py_TYPE(program) != is.VulkanProgram)
        return 0;
    Program *native = (Program *)SLOT(program, VulkanProgram_native);
    return Py_TYPE(native) == &Program_Type && PyBytes_CheckExact(bindings) &&
           (uint64_t)PyBytes_GET_SIZE(bindings) == PLACE * native->slots;
}

/* Whether a launch that was held back is one that this module can record. */
static int
is_native_launch(PyObject *first)
{
    return PyTuple_CheckExact(first) && PyTuple_GET_SIZE(first) == 4 &&
           is_native_program(PyTuple_GET_ITEM(first, 0), PyTuple_GET_ITEM(first, 1));
}

/* `recording._start()`: put what was held back into the command buffer. 0 if Python must do it. */
static int
start(PyObject *recording, PyObject *commands)
{
    Recorder *recorder = (Recorder *)SLOT(commands, Commands_native);
    PyObject *first = SLOT(recording, VulkanRecording__first);
    int publish = SLOT(recording, VulkanRecording__published) == Py_True;
    if (Py_TYPE(commands) != is.PrimaryCommands || !is_native_launch(first) ||
        (publish && recorder->to_host == NULL) ||
        SLOT(commands, PrimaryCommands__unfinished) != Py_False ||
        PyList_GET_SIZE(SLOT(commands, Commands__sets)))
        return 0;
    put(recording, VulkanRecording__content, Py_None);
    put(commands, PrimaryCommands__timed, Py_False);
    put(commands, PrimaryCommands__unfinished, Py_True);
    PyObject *results = SLOT(commands, PrimaryCommands__end_results);
    if (PyList_SetSlice(results, 0, PyList_GET_SIZE(results), NULL) < 0) {
        PyErr_Clear();
        return 0;
    }
    put(commands, Commands__program, Py_None);
    if (recorder->begin(recorder->command, recorder->info))
        return 0; /* Python begins again, and says what is wrong */
    launch(commands, PyTuple_GET_ITEM(first, 0), PyTuple_GET_ITEM(first, 1),
           PyTuple_GET_ITEM(first, 2), PyTuple_GET_ITEM(first, 3));
    if (publish)
        recorder->barrier(recorder->command, recorder->to_host);
    put(recording, VulkanRecording__started, Py_True);
    return 1;
}

/* `recording.dispatch(program, bindings, block, groups)`. -1 with an exception set if it failed. */
int
record_dispatch(PyObject *recording, PyObject *program, PyObject *bindings, PyObject *block,
                PyObject *groups)
{
    PyObject *commands = native_commands(recording);
    if (commands == NULL || !is_native_program(program, bindings)) {
        PyObject *arguments[] = {recording, program, bindings, block, groups};
        return call_method(named.dispatch, arguments, 5);
    }
    if (SLOT(recording, VulkanRecording__started) != Py_True) {
        if (SLOT(recording, VulkanRecording__first) == Py_None) {
            PyObject *first = PyTuple_Pack(4, program, bindings, block, groups);
            if (first == NULL)
                return -1;
            put(recording, VulkanRecording__first, first);
            Py_DECREF(first);
            return 0;
        }
        PyObject *arguments[] = {recording};
        if (!start(recording, commands) && call_method(named._start, arguments, 1) < 0)
            return -1;
    }
    launch(commands, program, bindings, block, groups);
    return 0;
}

/* `recording.mark(end=end)`: the number of the timestamp, or None. NULL if it failed. */
PyObject *
record_mark(PyObject *recording, int end)
{
    PyObject *commands = native_commands(recording);
    PyObject *times = commands == NULL || Py_TYPE(commands) != is.PrimaryCommands
                          ? NULL
                          : SLOT(commands, PrimaryCommands__times);
    if (times == NULL || Py_TYPE(times) != is.Timestamps ||
        SLOT(recording, VulkanRecording__started) != Py_True ||
        SLOT(commands, PrimaryCommands__timed) != Py_True ||
        Py_TYPE(SLOT(times, Timestamps_native)) != &Stamps_Type ||
        number(SLOT(times, Timestamps_count)) - number(SLOT(times, Timestamps_base)) >= ROOM) {
        PyObject *arguments[] = {recording, end ? Py_True : Py_False};
        PyObject *names = PyTuple_Pack(1, named.end), *made = NULL;
        if (names != NULL)
            made = PyObject_VectorcallMethod(named.mark, arguments, 1, names);
        Py_XDECREF(names);
        return made;
    }
    Recorder *recorder = (Recorder *)SLOT(commands, Commands_native);
    Stamps *stamps = (Stamps *)SLOT(times, Timestamps_native);
    PyObject *query = Py_NewRef(SLOT(times, Timestamps_count));
    if (put_number(times, Timestamps_count, number(query) + 1) < 0)
        Py_CLEAR(query);
    else
        stamps->write(recorder->command, end ? BOTTOM : TOP, stamps->pool,
                      (uint32_t)(number(query) - number(SLOT(times, Timestamps_base))));
    return query;
}

/* `recording.begin()`. 1, or -1. */
int
recording_begins(PyObject *recording)
{
    if (native_commands(recording) == NULL) {
        PyObject *arguments[] = {recording};
        return call_method(named.begin, arguments, 1) < 0 ? -1 : 1;
    }
    put(recording, VulkanRecording__started, Py_False);
    put(recording, VulkanRecording__ended, Py_False);
    put(recording, VulkanRecording__published, Py_False);
    put(recording, VulkanRecording__first, Py_None);
    return 1;
}

/* `recording.publish()`. 1, 0 or -1. */
int
recording_publishes(PyObject *recording)
{
    PyObject *commands = native_commands(recording);
    if (commands == NULL) {
        PyObject *arguments[] = {recording};
        return call_method(named.publish, arguments, 1) < 0 ? -1 : 1;
    }
    if (SLOT(recording, VulkanRecording__started) == Py_True) {
        Recorder *recorder = (Recorder *)SLOT(commands, Commands_native);
        if (recorder->to_host == NULL)
            return 0;
        recorder->barrier(recorder->command, recorder->to_host);
    }
    else
        put(recording, VulkanRecording__published, Py_True);
    return 1;
}

/* Whether the command buffer has from the last time what is to be in it now. */
static int
has_content(PyObject *content, PyObject *generation, PyObject *published, PyObject *first)
{
    if (!PyTuple_CheckExact(content) || PyTuple_GET_ITEM(content, 1) != published ||
        number(PyTuple_GET_ITEM(content, 0)) != number(generation))
        return 0;
    PyObject *known = PyTuple_GET_ITEM(content, 2);
    return known == first ||
           (PyTuple_CheckExact(known) && PyTuple_CheckExact(first) &&
            PyTuple_GET_ITEM(known, 0) == PyTuple_GET_ITEM(first, 0) &&
            same_bytes(PyTuple_GET_ITEM(first, 1), PyTuple_GET_ITEM(known, 1)) &&
            same_bytes(PyTuple_GET_ITEM(first, 2), PyTuple_GET_ITEM(known, 2)) &&
            same_numbers(PyTuple_GET_ITEM(first, 3), PyTuple_GET_ITEM(known, 3)));
}

/* `vkEndCommandBuffer`, whose result goes into a list; it may not be called again after a success,
   so there is room for the result before that. 0 if it failed, or was not called. */
static int
end_commands(Recorder *recorder, PyObject *results)
{
    PyObject *success = PyLong_FromLong(0);
    int ended = success != NULL && PyList_Append(results, success) == 0;
    Py_XDECREF(success);
    int32_t result = ended ? recorder->end(recorder->command) : 0;
    if (result) {
        PyObject *code = PyLong_FromLong(result);
        if (code != NULL)
            PyList_SetItem(results, 0, code);
        else /* as if it had not been called */
            PyList_SetSlice(results, 0, 1, NULL);
        ended = 0;
    }
    PyErr_Clear();
    return ended;
}

/* `recording.end()`. 0 if Python must do it. */
int
recording_ends(PyObject *recording)
{
    PyObject *commands = native_commands(recording);
    if (commands == NULL || Py_TYPE(commands) != is.PrimaryCommands)
        return 0;
    if (SLOT(recording, VulkanRecording__ended) == Py_True)
        return 1;
    Recorder *recorder = (Recorder *)SLOT(commands, Commands_native);
    PyObject *content = Py_None, *driver = SLOT(recording, VulkanRecording__driver);
    if (Py_TYPE(driver) != is.VulkanDriver)
        return 0;
    if (SLOT(recording, VulkanRecording__started) != Py_True) {
        PyObject *first = SLOT(recording, VulkanRecording__first);
        PyObject *published = SLOT(recording, VulkanRecording__published);
        PyObject *generation = SLOT(driver, VulkanDriver_generation);
        if (has_content(SLOT(recording, VulkanRecording__content), generation, published, first)) {
            put(recording, VulkanRecording__ended, Py_True);
            return 1;
        }
        content = PyTuple_Pack(3, generation, published, first);
        if (content == NULL || !start(recording, commands)) {
            Py_XDECREF(content);
            PyErr_Clear();
            return 0;
        }
    }
    else
        Py_INCREF(content);
    PyObject *results = SLOT(commands, PrimaryCommands__end_results);
    int done = SLOT(commands, PrimaryCommands__timed) == Py_False &&
               PyList_GET_SIZE(results) == 0 && end_commands(recorder, results);
    if (done) {
        put(commands, PrimaryCommands__unfinished, Py_False);
        put(recording, VulkanRecording__content, content);
        put(recording, VulkanRecording__ended, Py_True);
    }
    Py_DECREF(content);
    return done;
}

/* `queue.submit(recording, (), timeline, value)`. 1, 0 or -1. If 0, Python may do all of it. */
int
queue_submits(PyObject *queue, PyObject *recording, PyObject *timeline, PyObject *value)
{
    if (Py_TYPE(queue) != is.VulkanQueue) {
        PyObject *arguments[] = {queue, recording, nothing, timeline, value};
        return call_method(named.submit, arguments, 5) < 0 ? -1 : 1;
    }
    if (Py_TYPE(timeline) != is.VulkanTimeline ||
        Py_TYPE(SLOT(queue, VulkanQueue_native)) != &Queue_Type ||
        Py_TYPE(SLOT(timeline, VulkanTimeline_native)) != &Timeline_Type ||
        number(SLOT(queue, VulkanQueue__waited)) != 0 ||
        number(SLOT(timeline, VulkanTimeline_issued)) >= number(value))
        return 0;
    PyObject *commands = native_commands(recording);
    PyObject *driver = commands == NULL ? NULL : SLOT(recording, VulkanRecording__driver);
    if (driver == NULL || Py_TYPE(driver) != is.VulkanDriver)
        return 0;
    PyObject *backlog = SLOT(driver, VulkanDriver_backlog);
    if (Py_TYPE(backlog) != is.Backlog || PyList_GET_SIZE(SLOT(backlog, Backlog_queues)) ||
        !recording_ends(recording))
        return 0;
    Queue *native = (Queue *)SLOT(queue, VulkanQueue_native);
    native->info->commands = ((Recorder *)SLOT(commands, Commands_native))->commands;
    *native->signal_semaphore = ((Timeline *)SLOT(timeline, VulkanTimeline_native))->semaphore;
    *native->signal_value = (uint64_t)number(value);
    int32_t result;
    Py_BEGIN_ALLOW_THREADS
    result = native->submit(native->queue, 1, native->info, 0);
    Py_END_ALLOW_THREADS
    if (result) {
        /* As Python leaves it; it then finds the result, and says what is wrong. */
        PyObject *point = PyTuple_Pack(2, timeline, value), *code = PyLong_FromLong(result);
        PyObject *results = code == NULL ? NULL : PyList_New(0);
        if (point != NULL && results != NULL && PyList_Append(results, code) == 0) {
            put(queue, VulkanQueue__submitting, point);
            put(queue, VulkanQueue__results, results);
        }
        Py_XDECREF(point);
        Py_XDECREF(code);
        Py_XDECREF(results);
        PyErr_Clear();
        return 0;
    }
    put(timeline, VulkanTimeline_issued, value);
    return 1;
}

/* `timeline.value()`. 1, 0 or -1. */
int
timeline_reached(PyObject *timeline, long long *reached)
{
    if (Py_TYPE(timeline) != is.VulkanTimeline) {
        PyObject *value = PyObject_CallMethodNoArgs(timeline, named.value);
        *reached = number(value);
        Py_XDECREF(value);
        return value == NULL ? -1 : 1;
    }
    if (Py_TYPE(SLOT(timeline, VulkanTimeline_native)) != &Timeline_Type)
        return 0;
    Timeline *native = (Timeline *)SLOT(timeline, VulkanTimeline_native);
    uint64_t value;
    if (native->get(native->device, native->semaphore, &value))
        return 0;
    *reached = (long long)value;
    return 1;
}

/* Whether work that could not be submitted is held back; Python tries again before it waits. */
static int
has_backlog(PyObject *timeline)
{
    PyObject *driver = SLOT(timeline, VulkanTimeline__driver);
    if (Py_TYPE(driver) != is.VulkanDriver)
        return 1;
    PyObject *backlog = SLOT(driver, VulkanDriver_backlog);
    return Py_TYPE(backlog) != is.Backlog || PyList_GET_SIZE(SLOT(backlog, Backlog_queues)) > 0;
}

/* `driver.wait([(timeline, value)], …)` without the interpreter's lock: poll for a moment, then
   sleep for as long as Python would. HIP's is asked once. 0 if the value has not come, or Python
   must wait; -1 with an exception set. */
int
timeline_comes(PyObject *timeline, long long value)
{
    if (Py_TYPE(timeline) == is.HipTimeline) {
        long long reached;
        int asked = timeline_reached(timeline, &reached);
        return asked < 0 ? -1 : reached >= value;
    }
    if (Py_TYPE(timeline) != is.VulkanTimeline ||
        Py_TYPE(SLOT(timeline, VulkanTimeline_native)) != &Timeline_Type)
        return 0;
    Timeline *native = (Timeline *)SLOT(timeline, VulkanTimeline_native);
    uint64_t reached = 0, wanted = (uint64_t)value;
    int failed, sleeps = !has_backlog(timeline);
    Py_INCREF(native);
    Py_BEGIN_ALLOW_THREADS
    double until = moment_from_now();
    for (unsigned turn = 0;
         !(failed = native->get(native->device, native->semaphore, &reached)) &&
         reached < wanted && now() < until;
         turn++)
        rest(turn);
    if (!failed && reached < wanted && sleeps) {
        WaitInfo info = {WAIT_INFO, NULL, 0, 1, &native->semaphore, &wanted};
        if (native->wait(native->device, &info, SLICE) == 0)
            reached = wanted;
    }
    Py_END_ALLOW_THREADS
    Py_DECREF(native);
    return !failed && reached >= wanted;
}
