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
    SLOT(Lane, seen)                                                                               \
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
    SLOT(Batch, must_publish)                                                                      \
    SLOT(Batch, open)                                                                              \
    SLOT(Batch, recording)                                                                         \
    SLOT(Batch, value)                                                                             \
    SLOT(Stream, _batch)                                                                           \
    SLOT(Stream, lane)                                                                             \
    SLOT(Stream, plain)                                                                            \
    SLOT(Stream, scheduler)                                                                        \
    SLOT(Scheduler, plain)                                                                         \
    SLOT(Result, _memory)                                                                          \
    SLOT(ResultMemory, handle)                                                                     \
    SLOT(ResultMemory, offset)                                                                     \
    SLOT(ResultMemory, use)                                                                        \
    SLOT(VulkanRecording, _commands)                                                               \
    SLOT(VulkanRecording, _first)                                                                  \
    SLOT(VulkanRecording, _started)                                                                \
    SLOT(Commands, _bindings)                                                                      \
    SLOT(Commands, _program)                                                                       \
    SLOT(Commands, _pushed)                                                                        \
    SLOT(Commands, native)                                                                         \
    SLOT(VulkanProgram, native)

#define CLASSES(CLASS)                                                                             \
    CLASS(Lane) CLASS(Access) CLASS(History) CLASS(Backing) CLASS(Buffer) CLASS(Array)             \
    CLASS(Bound) CLASS(Batch) CLASS(Stream) CLASS(Scheduler) CLASS(Result) CLASS(ResultMemory)     \
    CLASS(VulkanRecording) CLASS(Commands) CLASS(VulkanProgram)

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

extern PyTypeObject Callable_Type, Recorder_Type, Program_Type;

/* ledger.c */
int ledger_needs(PyObject *lane, PyObject *use, int *barrier);
int ledger_note(PyObject *lane, PyObject *use, PyObject *value, PyObject *what);

/* recorder.c */
int record_barrier(PyObject *recording);
int record_dispatch(PyObject *recording, PyObject *program, PyObject *bindings, PyObject *block,
                    PyObject *groups);

#endif
