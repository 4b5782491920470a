/* The device's lock: `with scheduler.lock:` takes it in Python, `lock_taken` in C.

   Like `threading.RLock` it knows the thread that has it, which alone may release it; unlike that
   one, it is not taken twice. A thread that finds it free takes it with one exchange. Others sleep
   until it is released, without the interpreter's lock, and try again: a thread that comes by
   meanwhile may take it first. */

#include "layout.h"
#include <stdatomic.h>

typedef struct {
    PyObject_HEAD
    atomic_ulong owner;       /* the thread that has it, or `FREE` */
    atomic_int sleepers;      /* threads that want to be woken */
    atomic_int rung;          /* whether the alarm rings, and no sleeper has heard it yet */
    PyThread_type_lock alarm; /* sleepers wait to take it; ringing it is releasing it */
} Lock;

static const unsigned long FREE = PYTHREAD_INVALID_THREAD_ID;

static int
take_if_free(Lock *lock)
{
    unsigned long found = FREE;
    return atomic_compare_exchange_strong(&lock->owner, &found, PyThread_get_thread_ident());
}

static int
is_own(Lock *lock)
{
    return atomic_load_explicit(&lock->owner, memory_order_relaxed) == PyThread_get_thread_ident();
}

/* Take a lock that another thread has, once that thread releases it: 1. -1 with an exception set if
   a signal handler raises one first. */
static int
sleep_and_take(Lock *lock)
{
    int taken = 0;
    /* The owner frees the lock, then looks for sleepers; a sleeper is counted, then looks whether
       the lock is free. One of the two sees the other. */
    atomic_fetch_add(&lock->sleepers, 1);
    while (taken == 0 && !(taken = take_if_free(lock))) {
        PyLockStatus heard;
        Py_BEGIN_ALLOW_THREADS
        heard = PyThread_acquire_lock_timed(lock->alarm, -1, 1);
        Py_END_ALLOW_THREADS
        if (heard == PY_LOCK_ACQUIRED)
            atomic_store(&lock->rung, 0);
        else if (Py_MakePendingCalls() < 0)
            taken = -1;
    }
    atomic_fetch_sub(&lock->sleepers, 1);
    return taken;
}

static void
release(Lock *lock)
{
    atomic_store(&lock->owner, FREE);
    if (atomic_load(&lock->sleepers) && !atomic_exchange(&lock->rung, 1))
        PyThread_release_lock(lock->alarm);
}

/* Take the lock, waiting for a thread that has it, if nothing about the device is unusual: the slot
   at `condition` says so, of `Scheduler.ready` or, where a trace counts, of `Scheduler.plain`. 0 if
   Python must take it: this thread has it already, and is told so there. 0 also with an exception
   set, if a signal handler has raised one meanwhile. */
int
lock_taken(PyObject *scheduler, Py_ssize_t condition)
{
    if (slot_of(scheduler, condition) != Py_True) /* a forked child has no lock to take */
        return 0;
    Lock *lock = (Lock *)SLOT(scheduler, Scheduler_mutex);
    if (!take_if_free(lock) && (is_own(lock) || sleep_and_take(lock) < 0))
        return 0;
    if (slot_of(scheduler, condition) == Py_True)
        return 1;
    release(lock);
    return 0;
}

/* Release the lock, whether or not an exception is set. */
void
lock_left(PyObject *scheduler)
{
    release((Lock *)SLOT(scheduler, Scheduler_mutex));
}

/* --- for Python ------------------------------------------------------------------------------ */

static PyObject *
acquire(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    Lock *lock = (Lock *)self;
    int blocking = 1;
    Py_ssize_t given = count + (names == NULL ? 0 : PyTuple_GET_SIZE(names));
    if (given > 1 || (names != NULL && PyTuple_GET_SIZE(names) == 1 &&
                      PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, 0), "blocking"))) {
        PyErr_SetString(PyExc_TypeError, "acquire() takes blocking= and nothing else");
        return NULL;
    }
    if (given == 1 && (blocking = PyObject_IsTrue(args[0])) < 0)
        return NULL;
    if (take_if_free(lock))
        Py_RETURN_TRUE;
    if (is_own(lock)) {
        PyErr_SetString(PyExc_RuntimeError, "this thread has the lock already");
        return NULL;
    }
    if (!blocking)
        Py_RETURN_FALSE;
    if (sleep_and_take(lock) < 0)
        return NULL;
    Py_RETURN_TRUE;
}

static PyObject *
enter(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    return acquire(self, NULL, 0, NULL);
}

static PyObject *
leave(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    if (!is_own((Lock *)self)) {
        PyErr_SetString(PyExc_RuntimeError, "this thread does not have the lock");
        return NULL;
    }
    release((Lock *)self);
    Py_RETURN_NONE;
}

static PyObject *
leave_block(PyObject *self, PyObject *const *Py_UNUSED(args), Py_ssize_t Py_UNUSED(count))
{
    return leave(self, NULL);
}

static PyObject *
is_owned(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    return PyBool_FromLong(is_own((Lock *)self));
}

static PyObject *
lock_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    if (PyTuple_GET_SIZE(args) || (keywords != NULL && PyDict_GET_SIZE(keywords))) {
        PyErr_SetString(PyExc_TypeError, "a lock takes no arguments");
        return NULL;
    }
    Lock *lock = (Lock *)type->tp_alloc(type, 0);
    if (lock == NULL)
        return NULL;
    atomic_init(&lock->owner, FREE);
    lock->alarm = PyThread_allocate_lock();
    if (lock->alarm == NULL) {
        Py_DECREF(lock);
        return PyErr_NoMemory();
    }
    PyThread_acquire_lock(lock->alarm, NOWAIT_LOCK);
    return (PyObject *)lock;
}

static void
lock_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    if (((Lock *)self)->alarm != NULL)
        PyThread_free_lock(((Lock *)self)->alarm);
    type->tp_free(self);
}

static PyMethodDef lock_methods[] = {
    {"acquire", (PyCFunction)(void (*)(void))acquire, METH_FASTCALL | METH_KEYWORDS,
     "acquire(blocking=True)\n--\n\nTake the lock; whether it was taken."},
    {"release", leave, METH_NOARGS, "release()\n--\n\nRelease the lock, which this thread has."},
    {"__enter__", enter, METH_NOARGS, "__enter__()\n--\n\nTake the lock."},
    {"__exit__", (PyCFunction)(void (*)(void))leave_block, METH_FASTCALL,
     "__exit__(*ignored)\n--\n\nRelease the lock."},
    {"_is_owned", is_owned, METH_NOARGS, "_is_owned()\n--\n\nWhether this thread has the lock."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject Lock_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "penstock._native.Lock",
    .tp_doc = "A device's lock: `threading.RLock`, but that a thread cannot take it twice.",
    .tp_basicsize = sizeof(Lock),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_new = lock_new,
    .tp_dealloc = lock_dealloc,
    .tp_methods = lock_methods,
};
