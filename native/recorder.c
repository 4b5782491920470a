/* Commands of Vulkan, as `penstock.driver.vulkan.commands` records them, in one step each. */

#include "layout.h"

/* The parts of Vulkan's interface that are used here, by the names and types of its headers. */
typedef void (*BindPipeline)(void *command, uint32_t point, uint64_t pipeline);
typedef void (*PushConstants)(void *command, uint64_t layout, uint32_t stages, uint32_t offset,
                              uint32_t size, const void *values);
typedef void (*PushDescriptors)(void *command, uint64_t template, uint64_t layout, uint32_t set,
                                const void *data);
typedef void (*Dispatch)(void *command, uint32_t x, uint32_t y, uint32_t z);
typedef void (*Barrier)(void *command, const void *dependency);

typedef struct {
    uint64_t buffer, offset, range;
} DescriptorBufferInfo;

enum { COMPUTE_POINT = 1, COMPUTE_STAGE = 0x20, MOST_BINDINGS = 32 };

/* A command buffer, and the functions that record into it. */
typedef struct {
    PyObject_HEAD
    void *command;
    const void *between; /* the VkDependencyInfo of a barrier between commands */
    BindPipeline bind;
    PushConstants push;
    PushDescriptors describe;
    Dispatch dispatch;
    Barrier barrier;
} Recorder;

/* A pipeline and what is bound with it. */
typedef struct {
    PyObject_HEAD
    uint64_t pipeline, layout, template;
    unsigned long long slots;
} Program;

static PyObject *
recorder_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"command", "between", "bind", "push", "describe", "dispatch",
                            "barrier", NULL};
    unsigned long long given[7];
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "$KKKKKKK:Recorder", names, &given[0],
                                     &given[1], &given[2], &given[3], &given[4], &given[5],
                                     &given[6]))
        return NULL;
    Recorder *made = (Recorder *)type->tp_alloc(type, 0);
    if (made == NULL)
        return NULL;
    made->command = (void *)(uintptr_t)given[0];
    made->between = (const void *)(uintptr_t)given[1];
    made->bind = (BindPipeline)(uintptr_t)given[2];
    made->push = (PushConstants)(uintptr_t)given[3];
    made->describe = (PushDescriptors)(uintptr_t)given[4];
    made->dispatch = (Dispatch)(uintptr_t)given[5];
    made->barrier = (Barrier)(uintptr_t)given[6];
    return (PyObject *)made;
}

PyTypeObject Recorder_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "penstock._native.Recorder",
    .tp_doc = "A command buffer and the functions that record into it, as addresses.",
    .tp_basicsize = sizeof(Recorder),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = recorder_new,
};

static PyObject *
program_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"pipeline", "layout", "template", "slots", NULL};
    unsigned long long given[4];
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "$KKKK:Program", names, &given[0], &given[1],
                                     &given[2], &given[3]))
        return NULL;
    Program *made = (Program *)type->tp_alloc(type, 0);
    if (made == NULL)
        return NULL;
    made->pipeline = given[0];
    made->layout = given[1];
    made->template = given[2];
    made->slots = given[3];
    return (PyObject *)made;
}

PyTypeObject Program_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "penstock._native.Program",
    .tp_doc = "A pipeline, its layout and its descriptor template, as handles.",
    .tp_basicsize = sizeof(Program),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = program_new,
};

static int
call_method(PyObject *object, const char *name)
{
    PyObject *done = PyObject_CallMethod(object, name, NULL);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
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
    if (commands == NULL || SLOT(recording, VulkanRecording__started) != Py_True)
        return call_method(recording, "barrier");
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

/* `Commands.launch`: bind what is not bound yet, and dispatch. Nothing here can fail. */
static void
launch(PyObject *commands, PyObject *program, PyObject *bindings, PyObject *block,
       const uint32_t groups[3])
{
    Recorder *recorder = (Recorder *)SLOT(commands, Commands_native);
    Program *native = (Program *)SLOT(program, VulkanProgram_native);
    void *command = recorder->command;
    if (SLOT(commands, Commands__program) != program) {
        put(&SLOT(commands, Commands__bindings), Py_None);
        put(&SLOT(commands, Commands__pushed), Py_None);
        recorder->bind(command, COMPUTE_POINT, native->pipeline);
        put(&SLOT(commands, Commands__program), program);
    }
    if (!same_numbers(bindings, SLOT(commands, Commands__bindings))) {
        DescriptorBufferInfo infos[MOST_BINDINGS];
        for (unsigned long long i = 0; i < native->slots; i++) {
            Py_ssize_t first = 3 * (Py_ssize_t)i;
            infos[i].buffer = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(bindings, first));
            infos[i].offset = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(bindings, first + 1));
            infos[i].range = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(bindings, first + 2));
        }
        if (native->slots)
            recorder->describe(command, native->template, native->layout, 0, infos);
        put(&SLOT(commands, Commands__bindings), bindings);
    }
    if (PyBytes_GET_SIZE(block) && !same_bytes(block, SLOT(commands, Commands__pushed))) {
        recorder->push(command, native->layout, COMPUTE_STAGE, 0, (uint32_t)PyBytes_GET_SIZE(block),
                       PyBytes_AS_STRING(block));
        put(&SLOT(commands, Commands__pushed), block);
    }
    recorder->dispatch(command, groups[0], groups[1], groups[2]);
}

/* Whether this module can record launches of a program: with push descriptors, and not too many. */
static int
is_native_program(PyObject *program, PyObject *bindings)
{
    if (Py_TYPE(program) != is.VulkanProgram)
        return 0;
    Program *native = (Program *)SLOT(program, VulkanProgram_native);
    return Py_TYPE(native) == &Program_Type && native->slots <= MOST_BINDINGS &&
           (unsigned long long)PyTuple_GET_SIZE(bindings) == 3 * native->slots;
}

/* `recording.dispatch(program, bindings, block, groups)`. -1 with an exception set if it failed. */
int
record_dispatch(PyObject *recording, PyObject *program, PyObject *bindings, PyObject *block,
                PyObject *groups)
{
    static PyObject *dispatch;
    if (dispatch == NULL && (dispatch = PyUnicode_InternFromString("dispatch")) == NULL)
        return -1;
    PyObject *commands = native_commands(recording);
    if (commands == NULL || !is_native_program(program, bindings)) {
        PyObject *arguments[] = {recording, program, bindings, block, groups};
        PyObject *done = PyObject_VectorcallMethod(dispatch, arguments, 5, NULL);
        Py_XDECREF(done);
        return done == NULL ? -1 : 0;
    }
    if (SLOT(recording, VulkanRecording__started) != Py_True) {
        if (SLOT(recording, VulkanRecording__first) == Py_None) {
            PyObject *first = PyTuple_Pack(4, program, bindings, block, groups);
            if (first == NULL)
                return -1;
            put(&SLOT(recording, VulkanRecording__first), first);
            Py_DECREF(first);
            return 0;
        }
        if (call_method(recording, "_start") < 0)
            return -1;
    }
    uint32_t counts[3];
    for (int i = 0; i < 3; i++)
        counts[i] = (uint32_t)number(PyTuple_GET_ITEM(groups, i));
    launch(commands, program, bindings, block, counts);
    return 0;
}
