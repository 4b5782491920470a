/* The points of a build for tests: which of them were passed, and what happens at one of them. */

#include "points.h"
#include <signal.h>

enum { SIGNAL, RAISE, CALL }; /* acts */

static struct {
    int kinds, act;
    long long number, count; /* the point to act at; the points passed */
    unsigned long thread;    /* whose points count */
    PyObject *object;        /* what to raise, or to call */
    const char *place;       /* where it acted */
    const char *last;
} state;

/* As CPython calls a finaliser: whatever is being raised stays, and the call cannot raise. */
static void
call(void)
{
    PyGILState_STATE held = PyGILState_Ensure();
    PyObject *kind, *value, *traceback;
    PyErr_Fetch(&kind, &value, &traceback);
    PyObject *result = PyObject_CallNoArgs(state.object);
    if (result == NULL)
        PyErr_WriteUnraisable(state.object);
    (Py_XDECREF)(result);
    PyErr_Restore(kind, value, traceback);
    PyGILState_Release(held);
}

int
pass_point(int kind, const char *place)
{
    if (!(state.kinds & kind) || PyThread_get_thread_ident() != state.thread)
        return 0;
    /* A poll in a loop is one point. */
    int again = kind == DRIVER_POINT && place == state.last && !PyGILState_Check();
    state.last = place;
    if (again || ++state.count != state.number)
        return 0;
    state.place = place;
    switch (state.act) {
    case SIGNAL:
        PyErr_SetInterruptEx(SIGINT);
        return 0;
    case CALL:
        call();
        return 0;
    default:
        PyErr_SetNone(state.object);
        return 1;
    }
}

__attribute__((visibility("default"))) void
points_start(int kinds, int act, long long number, PyObject *object)
{
    Py_INCREF(object);
    PyObject *before = state.object;
    state.object = object;
    (Py_XDECREF)(before);
    state.act = act;
    state.number = number;
    state.count = 0;
    state.place = state.last = "";
    state.thread = PyThread_get_thread_ident();
    state.kinds = kinds;
}

/* Pass no more points; how many were passed. */
__attribute__((visibility("default"))) long long
points_stop(void)
{
    state.kinds = 0;
    return state.count;
}

__attribute__((visibility("default"))) const char *
points_place(void)
{
    return state.place;
}
