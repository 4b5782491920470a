/* `penstock._native`: the common case of a launch, in C.

   The Python code is the whole of Penstock, and runs alone where this module is not built. What is
   here does the same as the Python function that it stands for, on the same objects, or leaves the
   work to that function before anything has changed. */

#include "layout.h"
#include <structmember.h>

/* Increased when the Python code comes to rely on something else; see `penstock.accelerator`. */
enum { VERSION = 4 };

Offsets at;
Classes is;
Names named;

void call_natively(PyTypeObject *class);
int call_setup(void);

static const struct {
    const char *class, *slot;
    Py_ssize_t *offset;
} SLOTS[] = {
#define ROW(class, slot) {#class, #slot, &at.class##_##slot},
    LAYOUT(ROW)
#undef ROW
};

static const struct {
    const char *name;
    PyTypeObject **class;
} NAMES[] = {
#define ROW(class) {#class, &is.class},
    CLASSES(ROW)
#undef ROW
};

PyDoc_STRVAR(share_doc,
"share(class_)\n--\n\n"
"Learn where the slots of a class are that this module uses by its name.");

static PyObject *
share(PyObject *Py_UNUSED(module), PyObject *class)
{
    if (!PyType_Check(class))
        return PyErr_Format(PyExc_TypeError, "%R is not a class", class);
    PyObject *name = PyObject_GetAttrString(class, "__name__");
    size_t row = 0;
    while (name != NULL && row < Py_ARRAY_LENGTH(NAMES) &&
           PyUnicode_CompareWithASCIIString(name, NAMES[row].name))
        row++;
    Py_XDECREF(name);
    if (name == NULL)
        return NULL;
    if (row == Py_ARRAY_LENGTH(NAMES))
        return PyErr_Format(PyExc_TypeError, "%R is not used here", class);
    for (size_t i = 0; i < Py_ARRAY_LENGTH(SLOTS); i++) {
        if (strcmp(SLOTS[i].class, NAMES[row].name))
            continue;
        PyObject *slot = PyObject_GetAttrString(class, SLOTS[i].slot);
        if (slot == NULL || Py_TYPE(slot) != &PyMemberDescr_Type ||
            ((PyMemberDescrObject *)slot)->d_member->type != T_OBJECT_EX) {
            PyErr_Clear();
            Py_XDECREF(slot);
            return PyErr_Format(PyExc_TypeError, "%R has no slot %s", class, SLOTS[i].slot);
        }
        *SLOTS[i].offset = ((PyMemberDescrObject *)slot)->d_member->offset;
        Py_DECREF(slot);
    }
    *NAMES[row].class = (PyTypeObject *)Py_NewRef(class); /* for as long as the module lives */
    Py_RETURN_NONE;
}

static PyObject *
natively(PyObject *Py_UNUSED(module), PyObject *class)
{
    if (!PyType_Check(class) || !PyType_IsSubtype((PyTypeObject *)class, &Callable_Type))
        return PyErr_Format(PyExc_TypeError, "%R is not a class of callables", class);
    call_natively((PyTypeObject *)class);
    return Py_NewRef(class);
}

static PyMethodDef functions[] = {
    {"share", share, METH_O, share_doc},
    {"called_natively", natively, METH_O,
     "called_natively(class_)\n--\n\nHave calls of its objects made here first."},
    {"launches", native_launches, METH_NOARGS,
     "launches()\n--\n\nHow many were made natively, and how many were left to Python."},
    {"share_events", native_share_events, METH_VARARGS,
     "share_events(names, file)\n--\n\n"
     "Learn what `events.emit` uses: its module's names, and the file of threads."},
    {"note_traces", native_note_traces, METH_O,
     "note_traces(active)\n--\n\nLearn whether a trace is active."},
    {"note_counting", native_note_counting, METH_O,
     "note_counting(on)\n--\n\nLearn whether something counts what the runtime does."},
    {"counts", native_counts, METH_NOARGS,
     "counts()\n--\n\nWhat was counted here so far, in the order of `tracing.counting.NATIVE`."},
    {"left", native_left, METH_NOARGS,
     "left()\n--\n\nBy reason: how many launches were left to Python."},
    {"start", native_start, METH_O, "start(stream)\n--\n\nAs `Stream._start`, or None."},
    {"submit", native_submit, METH_O,
     "submit(stream)\n--\n\nAs `Stream._submit`; False if it must do it."},
    {"poll", native_poll, METH_O, "poll(stream)\n--\n\nAs `Stream.poll`; False if it must do it."},
    {"reach", (PyCFunction)(void (*)(void))native_reach, METH_FASTCALL,
     "reach(lane, value)\n--\n\nAs `Lane.reach`; False if it must do it."},
    {"synchronize", native_synchronize, METH_O,
     "synchronize(stream)\n--\n\nAs `Stream.synchronize`; False if it must do it."},
    {"result", native_result, METH_O,
     "result(result)\n--\n\nAs `Result.result`, or None."},
    {"read", native_read, METH_O, "read(array)\n--\n\nAs `transfer.read_now`, or None."},
    {"write", (PyCFunction)(void (*)(void))native_write, METH_FASTCALL,
     "write(array, source)\n--\n\nAs `transfer.write`; False if it must do it."},
    {"wait", (PyCFunction)(void (*)(void))native_wait, METH_FASTCALL,
     "wait(scheduler, points)\n--\n\nAs one turn of `Scheduler.await_points`; whether it was reached."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "penstock._native",
    .m_doc = "The common case of a launch, in C. See `penstock.accelerator`.",
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC
PyInit__native(void)
{
    static const struct {
        PyObject **name;
        const char *text;
    } METHOD_NAMES[] = {
#define ROW(name) {&named.name, #name},
        METHODS(ROW)
#undef ROW
    };
    for (size_t i = 0; i < Py_ARRAY_LENGTH(METHOD_NAMES); i++)
        if ((*METHOD_NAMES[i].name = PyUnicode_InternFromString(METHOD_NAMES[i].text)) == NULL)
            return NULL;
    if (call_setup() < 0 || trace_setup() < 0)
        return NULL;
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL)
        return NULL;
#ifdef Py_GIL_DISABLED
    PyUnstable_Module_SetGIL(module, Py_MOD_GIL_NOT_USED);
#endif
    if (PyModule_AddType(module, &Callable_Type) < 0 ||
        PyModule_AddType(module, &Lock_Type) < 0 ||
        PyModule_AddType(module, &Recorder_Type) < 0 ||
        PyModule_AddType(module, &Program_Type) < 0 ||
        PyModule_AddType(module, &Timeline_Type) < 0 ||
        PyModule_AddType(module, &Queue_Type) < 0 ||
        PyModule_AddType(module, &Stamps_Type) < 0 ||
        PyModule_AddIntConstant(module, "VERSION", VERSION) < 0 ||
        PyModule_AddStringConstant(module, "SOURCES", PENSTOCK_SOURCES) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
