/* The device's lock, as `with scheduler.lock:` takes it, where that needs no waiting. */

#include "layout.h"

/* Take the lock if it is free and nothing about the device is unusual: 0 if Python must take it. A
   thread that holds it already is told so there. */
int
lock_taken(PyObject *scheduler)
{
    if (SLOT(scheduler, Scheduler_plain) != Py_True) /* a forked child has no lock to take */
        return 0;
    PyObject *locked = PyObject_CallNoArgs(SLOT(scheduler, Scheduler_is_locked_here));
    Py_XDECREF(locked);
    if (locked == Py_False) {
        locked = PyObject_CallOneArg(SLOT(scheduler, Scheduler_acquire), Py_False);
        Py_XDECREF(locked);
        if (locked == Py_True) {
            if (SLOT(scheduler, Scheduler_plain) == Py_True)
                return 1;
            lock_left(scheduler);
        }
    }
    PyErr_Clear();
    return 0;
}

/* Release the lock, whether or not an exception is set. */
void
lock_left(PyObject *scheduler)
{
#if PY_VERSION_HEX >= 0x030C0000
    PyObject *raised = PyErr_GetRaisedException();
#else
    PyObject *kind, *raised, *traceback;
    PyErr_Fetch(&kind, &raised, &traceback);
#endif
    PyObject *released = PyObject_CallNoArgs(SLOT(scheduler, Scheduler_release_lock));
    if (released == NULL)
        PyErr_Clear(); /* it was ours: this cannot be refused */
    Py_XDECREF(released);
#if PY_VERSION_HEX >= 0x030C0000
    PyErr_SetRaisedException(raised);
#else
    PyErr_Restore(kind, raised, traceback);
#endif
}
