/* The device's lock, as `with scheduler.lock:` takes it. */

#include "layout.h"

/* Take the lock, waiting for a thread that has it, if nothing about the device is unusual: the slot
   at `condition` says so, of `Scheduler.ready` or, where a trace counts, of `Scheduler.plain`. 0 if
   Python must take it: this thread has it already, and is told so there. 0 also with an exception
   set, if a signal handler has raised one meanwhile. */
int
lock_taken(PyObject *scheduler, Py_ssize_t condition)
{
    if (slot_of(scheduler, condition) != Py_True) /* a forked child has no lock to take */
        return 0;
    PyObject *locked = PyObject_CallNoArgs(SLOT(scheduler, Scheduler_is_locked_here));
    Py_XDECREF(locked);
    if (locked != Py_False)
        return 0;
    locked = PyObject_CallNoArgs(SLOT(scheduler, Scheduler_acquire));
    Py_XDECREF(locked);
    if (locked != Py_True)
        return 0;
    if (slot_of(scheduler, condition) == Py_True)
        return 1;
    lock_left(scheduler);
    return 0;
}

/* Release the lock, whether or not an exception is set. */
void
lock_left(PyObject *scheduler)
{
    Raised aside = set_aside();
    PyObject *released = PyObject_CallNoArgs(SLOT(scheduler, Scheduler_release_lock));
    if (released == NULL)
        PyErr_Clear(); /* it was ours: this cannot be refused */
    Py_XDECREF(released);
    raise_again(aside);
}
