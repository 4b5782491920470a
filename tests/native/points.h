/* Points in the C code at which a test can act; included before every file of a build for tests.

   C has no bytecodes, so a trace function does not see where the native step can be disturbed. That
   is where it calls the driver (a signal may arrive), allocates (there may be no memory, or the
   garbage collector runs finalisers), drops an object (its finaliser runs), releases the
   interpreter's lock (other threads run), and calls a Python function (a signal handler raises).
   `pass_point` counts them, and acts at one of them: see `tests/native/points.py`. */

#ifndef PENSTOCK_POINTS_H
#define PENSTOCK_POINTS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

enum { DRIVER_POINT = 1, ALLOCATION_POINT = 2, END_POINT = 4, RELEASE_POINT = 8, CALL_POINT = 16 };

/* Pass a point; whether what follows is to fail, with the exception set. */
int pass_point(int kind, const char *place);

#define AS_TEXT(x) #x
#define TEXT_OF(x) AS_TEXT(x)
#define HERE __FILE__ ":" TEXT_OF(__LINE__)

/* --- calls of the driver: `points.py` puts this before each ----------------------------------- */

#define AT_DRIVER(function) ((void)pass_point(DRIVER_POINT, HERE " " #function), function)

/* --- allocations ------------------------------------------------------------------------------ */

/* Functions, so that the arguments are evaluated, as they are where the allocation fails. */
#define ALLOCATES(type, function, failed, parameters, arguments)                                   \
    static inline type points_##function parameters                                                \
    {                                                                                              \
        return pass_point(ALLOCATION_POINT, place) ? failed : function arguments;                  \
    }

ALLOCATES(PyObject *, PyTuple_New, NULL, (const char *place, Py_ssize_t size), (size))
ALLOCATES(PyObject *, PyList_New, NULL, (const char *place, Py_ssize_t size), (size))
ALLOCATES(PyObject *, PyLong_FromLong, NULL, (const char *place, long value), (value))
ALLOCATES(PyObject *, PyLong_FromLongLong, NULL, (const char *place, long long value), (value))
ALLOCATES(PyObject *, PyBytes_FromStringAndSize, NULL,
          (const char *place, const char *text, Py_ssize_t size), (text, size))
ALLOCATES(int, PyList_Append, -1, (const char *place, PyObject *list, PyObject *item), (list, item))
ALLOCATES(int, PyList_SetSlice, -1,
          (const char *place, PyObject *list, Py_ssize_t lo, Py_ssize_t hi, PyObject *items),
          (list, lo, hi, items))
ALLOCATES(int, PyList_Insert, -1,
          (const char *place, PyObject *list, Py_ssize_t where, PyObject *item),
          (list, where, item))
ALLOCATES(PyObject *, PyDict_New, NULL, (const char *place), ())
ALLOCATES(int, PyDict_SetItem, -1,
          (const char *place, PyObject *dict, PyObject *key, PyObject *value), (dict, key, value))
ALLOCATES(PyObject *, PyLong_FromUnsignedLong, NULL, (const char *place, unsigned long value),
          (value))
ALLOCATES(double, PyFloat_AsDouble, -1.0, (const char *place, PyObject *value), (value))
ALLOCATES(PyObject *, PyNumber_Index, NULL, (const char *place, PyObject *value), (value))
ALLOCATES(PyObject *, PyObject_GetAttr, NULL,
          (const char *place, PyObject *object, PyObject *name), (object, name))
ALLOCATES(PyObject *, PyObject_GetItem, NULL, (const char *place, PyObject *object, PyObject *key),
          (object, key))
ALLOCATES(int, PyObject_SetItem, -1,
          (const char *place, PyObject *object, PyObject *key, PyObject *value),
          (object, key, value))
ALLOCATES(int, PySet_Add, -1, (const char *place, PyObject *set, PyObject *item), (set, item))
ALLOCATES(void *, PyMem_Malloc, NULL, (const char *place, size_t size), (size))

#define PyTuple_New(size) points_PyTuple_New(HERE " PyTuple_New", size)
#define PyTuple_Pack(...)                                                                          \
    (pass_point(ALLOCATION_POINT, HERE " PyTuple_Pack") ? NULL : PyTuple_Pack(__VA_ARGS__))
#define PyList_New(size) points_PyList_New(HERE " PyList_New", size)
#define PyLong_FromLong(value) points_PyLong_FromLong(HERE " PyLong_FromLong", value)
#define PyLong_FromLongLong(value) points_PyLong_FromLongLong(HERE " PyLong_FromLongLong", value)
#define PyBytes_FromStringAndSize(text, size)                                                      \
    points_PyBytes_FromStringAndSize(HERE " PyBytes_FromStringAndSize", text, size)
#define PyList_Append(list, item) points_PyList_Append(HERE " PyList_Append", list, item)
#define PyList_SetSlice(list, lo, hi, items)                                                       \
    points_PyList_SetSlice(HERE " PyList_SetSlice", list, lo, hi, items)
#define PyList_Insert(list, where, item)                                                           \
    points_PyList_Insert(HERE " PyList_Insert", list, where, item)
#define PyDict_New() points_PyDict_New(HERE " PyDict_New")
#define PyDict_SetItem(dict, key, value)                                                           \
    points_PyDict_SetItem(HERE " PyDict_SetItem", dict, key, value)
#define PyLong_FromUnsignedLong(value)                                                             \
    points_PyLong_FromUnsignedLong(HERE " PyLong_FromUnsignedLong", value)
#define PyFloat_AsDouble(value) points_PyFloat_AsDouble(HERE " PyFloat_AsDouble", value)
#define PyNumber_Index(value) points_PyNumber_Index(HERE " PyNumber_Index", value)
#define PyObject_GetAttr(object, name)                                                             \
    points_PyObject_GetAttr(HERE " PyObject_GetAttr", object, name)
#define PyObject_GetItem(object, key) points_PyObject_GetItem(HERE " PyObject_GetItem", object, key)
#define PyObject_SetItem(object, key, value)                                                       \
    points_PyObject_SetItem(HERE " PyObject_SetItem", object, key, value)
#define PySet_Add(set, item) points_PySet_Add(HERE " PySet_Add", set, item)
#undef PyMem_New
#define PyMem_New(type, count)                                                                     \
    ((type *)points_PyMem_Malloc(HERE " PyMem_New", (count) * sizeof(type)))

/* --- ends of objects -------------------------------------------------------------------------- */

static inline void
points_drop(const char *place, PyObject *object)
{
    int last = object != NULL && Py_REFCNT(object) == 1;
    Py_XDECREF(object);
    if (last)
        (void)pass_point(END_POINT, place);
}

#undef Py_DECREF
#define Py_DECREF(object) points_drop(HERE " Py_DECREF", (PyObject *)(object))
#undef Py_XDECREF
#define Py_XDECREF(object) points_drop(HERE " Py_XDECREF", (PyObject *)(object))

/* --- the interpreter's lock ------------------------------------------------------------------- */

#undef Py_BEGIN_ALLOW_THREADS
#define Py_BEGIN_ALLOW_THREADS                                                                     \
    {                                                                                              \
        (void)pass_point(RELEASE_POINT, HERE " release");                                          \
        PyThreadState *_save = PyEval_SaveThread();
#undef Py_END_ALLOW_THREADS
#define Py_END_ALLOW_THREADS                                                                       \
        PyEval_RestoreThread(_save);                                                               \
        (void)pass_point(RELEASE_POINT, HERE " reacquire");                                        \
    }

/* --- calls of Python functions, which may raise before they have acted, and after ------------- */

/* The result of a call, unless it is to be interrupted at its end. */
static inline PyObject *
points_after(const char *place, PyObject *result)
{
    if (result != NULL && pass_point(CALL_POINT, place)) {
        PyObject *kind, *value, *traceback;
        PyErr_Fetch(&kind, &value, &traceback);
        (Py_DECREF)(result);
        PyErr_Restore(kind, value, traceback);
        return NULL;
    }
    return result;
}

#define CALLS(call, name)                                                                          \
    (pass_point(CALL_POINT, HERE " before " name) ? NULL : points_after(HERE " after " name, call))

/* No signal handler runs in a function that is written in C. */
#define MAY_CALL(function, call, name)                                                             \
    (PyCFunction_Check(function) ? call : CALLS(call, name))

#define PyObject_Vectorcall(function, ...)                                                         \
    MAY_CALL(function, PyObject_Vectorcall(function, __VA_ARGS__), "PyObject_Vectorcall")
#define PyObject_VectorcallMethod(...)                                                             \
    CALLS(PyObject_VectorcallMethod(__VA_ARGS__), "PyObject_VectorcallMethod")
#undef PyObject_CallMethodNoArgs
#define PyObject_CallMethodNoArgs(object, name)                                                    \
    CALLS(PyObject_CallMethodObjArgs(object, name, NULL), "PyObject_CallMethodNoArgs")
#define PyObject_CallNoArgs(function)                                                              \
    MAY_CALL(function, PyObject_CallNoArgs(function), "PyObject_CallNoArgs")
#define PyObject_CallOneArg(function, argument)                                                    \
    MAY_CALL(function, PyObject_CallOneArg(function, argument), "PyObject_CallOneArg")
#define Py_MakePendingCalls()                                                                      \
    (pass_point(CALL_POINT, HERE " Py_MakePendingCalls") ? -1 : Py_MakePendingCalls())

#endif
