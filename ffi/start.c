/* The interpreter: started once, on a thread that lives for ever, or adopted from a
 * host that is a Python itself; never finalised. And the calls in flight, so that
 * the process can exit while they run. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "boundary.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#ifndef SEMANTIC_DEFAULT_ENVIRONMENT
#error "define SEMANTIC_DEFAULT_ENVIRONMENT, the environment folder known at build time"
#endif

#define EXIT_GRACE_SECONDS 1.5
#define INTERPRETER_STACK_BYTES (16u << 20)
/* Address space that a start takes, at most: where less is left, numpy's OpenBLAS, which has a
 * thread for each of up to 64 processors, ends the process. */
#define START_MEBIBYTES 288ul
#define START_MEBIBYTES_PER_PROCESSOR 48ul

enum state { IDLE, STARTING, READY, FAILED, EXITING, FORKED };

static _Atomic int state = IDLE;
static _Atomic int64_t in_flight;
static _Thread_local int inside;      /* this thread is one of them */
static _Thread_local int cancellable; /* as it was before the call */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int exit_asked; /* wakes the interpreter thread for its last work */
static int gave_up;    /* an adopted interpreter ended before the calls did */
static char failure[sizeof(((semantic_error *)0)->message)];
static char environment[PATH_MAX];
static int64_t resident_before;

int (*boundary_bind_python)(void);
void (*boundary_cancel_everything)(void);

/* Takes away what is left of a character whose end did not fit. */
static void cut_at_character(char *text) {
    size_t length = strlen(text), start = length;

    while (start > 0 && ((unsigned char)text[start - 1] & 0xC0) == 0x80)
        start--;
    if (start == 0)
        return;
    unsigned char lead = (unsigned char)text[--start];
    size_t whole = lead < 0xC0 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    if (length - start < whole)
        text[start] = '\0';
}

__attribute__((format(printf, 1, 2))) static int fail(const char *format, ...) {
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(failure, sizeof failure, format, arguments);
    va_end(arguments);
    cut_at_character(failure);
    return -1;
}

/* ---- The environment ---------------------------------------------------- */

/* NULL if the folder holds an environment of the right Python, else why not. */
static const char *refusal(const char *folder) {
    char path[PATH_MAX + 64];

    snprintf(path, sizeof path, "%s/bin/python3", folder);
    if (access(path, X_OK) != 0)
        return "has no bin/python3";
    snprintf(path, sizeof path, "%s/lib/python%d.%d", folder, PY_MAJOR_VERSION, PY_MINOR_VERSION);
    if (access(path, X_OK) != 0)
        return "is for another Python version";
    return NULL;
}

/* Whether a path can stand in a message: UTF-8, as the system's own paths are read, in one line. */
static int is_plain_path(const char *path) {
    const unsigned char *at = (const unsigned char *)path;

    while (*at != '\0') {
        size_t more = *at < 0x80 ? 0 : *at < 0xC2 ? 9 : *at < 0xE0 ? 1 : *at < 0xF0 ? 2 : 3;
        if (*at < ' ' || *at == 0x7F || *at > 0xF4 || more == 9)
            return 0;
        for (at++; more > 0; more--, at++)
            if ((*at & 0xC0) != 0x80)
                return 0;
    }
    return 1;
}

static void folder_of_library(char *folder, size_t size) {
    Dl_info info;
    char *slash;

    folder[0] = '\0';
    if (dladdr((void *)(uintptr_t)&folder_of_library, &info) == 0 || info.dli_fname == NULL)
        return;
    char resolved[PATH_MAX];
    if (realpath(info.dli_fname, resolved) == NULL)
        return;
    slash = strrchr(resolved, '/');
    if (slash == NULL)
        return;
    *slash = '\0';
    snprintf(folder, size, "%s", resolved);
}

/* Choose the environment: what the caller named, else what LIBSEMANTIC_PYTHON
 * names, else beside the library, else where it was built. A named one is the only
 * one that is tried. */
static int find_environment(const char *asked) {
    struct {
        const char *origin;
        char folder[PATH_MAX];
    } tried[2];
    int count = 0;
    char list[768];
    size_t used = 0;

    if (asked == NULL || asked[0] == '\0') {
        asked = getenv("LIBSEMANTIC_PYTHON");
        if (asked != NULL && asked[0] != '\0') {
            tried[count].origin = "LIBSEMANTIC_PYTHON";
            snprintf(tried[count++].folder, PATH_MAX, "%s", asked);
        } else {
            char library[PATH_MAX - 16];
            folder_of_library(library, sizeof library);
            tried[count].origin = "beside the library";
            snprintf(tried[count++].folder, PATH_MAX, "%s/../env", library);
            tried[count].origin = "built in";
            snprintf(tried[count++].folder, PATH_MAX, "%s", SEMANTIC_DEFAULT_ENVIRONMENT);
        }
    } else {
        tried[count].origin = "init option";
        snprintf(tried[count++].folder, PATH_MAX, "%s", asked);
    }
    list[0] = '\0';
    for (int i = 0; i < count; i++) {
        if (!is_plain_path(tried[i].folder))
            return fail("the path of the Python environment (%s) is not UTF-8 or has control "
                        "characters; give another",
                        tried[i].origin);
        const char *why = refusal(tried[i].folder);
        if (why == NULL) {
            if (realpath(tried[i].folder, environment) == NULL)
                return fail("the Python environment %.600s cannot be resolved", tried[i].folder);
            return 0;
        }
        int written = snprintf(list + used, sizeof list - used, "%s%s (%s) %s", i ? "; " : "",
                               tried[i].folder, tried[i].origin, why);
        if (written > 0 && (size_t)written < sizeof list - used)
            used += (size_t)written;
        cut_at_character(list);
    }
    return fail("no Python %d.%d environment found, tried: %s; set LIBSEMANTIC_PYTHON or the "
                "environment option to its folder",
                PY_MAJOR_VERSION, PY_MINOR_VERSION, list);
}

/* ---- Starting ----------------------------------------------------------- */

void boundary_report_start(const char *text) {
    if (text != NULL)
        fail("%s", text);
    else
        failure[0] = '\0';
}

int64_t boundary_resident_before_start(void) {
    return resident_before;
}

static int64_t resident_now(void) {
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");

    if (file == NULL)
        return 0;
    if (fscanf(file, "%*s %ld", &pages) != 1)
        pages = 0;
    fclose(file);
    return (int64_t)pages * sysconf(_SC_PAGESIZE);
}

/* An interpreter of another environment has other packages, or none of ours: ask before
 * any of them is imported. */
static int require_environment(void) {
    char running[PATH_MAX];
    PyGILState_STATE held = PyGILState_Ensure();
    PyObject *prefix = PySys_GetObject("prefix"); /* borrowed */
    const char *folder = prefix == NULL ? NULL : PyUnicode_AsUTF8(prefix);
    int known = folder != NULL && realpath(folder, running) != NULL;

    PyErr_Clear();
    PyGILState_Release(held);
    if (known && strcmp(running, environment) == 0)
        return 0;
    return fail("this process runs the Python environment %.400s, the library belongs to %.400s; "
                "use that environment or set LIBSEMANTIC_PYTHON",
                known ? running : "of an unknown folder", environment);
}

static void at_exit(int code, void *unused);

static int bind_python(void) {
    if (require_environment() != 0)
        return -1;
    snprintf(failure, sizeof failure,
             "the start-up code in %.600s could not be run (see stderr); reinstall the environment",
             environment);
    if (boundary_bind_python() != 0 || failure[0] != '\0')
        return -1;
    /* After the first run of ONNX Runtime and the import of onnx, which binding has done:
     * handlers run in reverse order, and their own teardown must come after ours. */
    if (on_exit(at_exit, NULL) != 0)
        return fail("no exit handler can be registered");
    return 0;
}

/* Extension modules look for Python's symbols in the global scope, but a host may
 * have opened this library with local scope. */
static void publish_python_symbols(void) {
    Dl_info info;

    if (dladdr((void *)(uintptr_t)&Py_InitializeFromConfig, &info) != 0 && info.dli_fname != NULL)
        (void)dlopen(info.dli_fname, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD);
}

static volatile sig_atomic_t interrupted;

static void note_interrupt(int number) {
    (void)number;
    interrupted = 1;
}

/* Whoever imports this module first makes Python handle SIGINT, unless the host does: so
 * it is imported while we do. An interrupt in between is passed on. */
static int import_signal_module(void) {
    struct sigaction note, host;
    PyObject *module;

    memset(&note, 0, sizeof note);
    note.sa_handler = note_interrupt;
    note.sa_flags = SA_ONSTACK | SA_RESTART; /* as hosts with small stacks, such as Go, need */
    sigaction(SIGINT, &note, &host);
    module = PyImport_ImportModule("_signal");
    sigaction(SIGINT, &host, NULL);
    if (interrupted)
        kill(getpid(), SIGINT);
    if (module == NULL) {
        PyErr_Clear();
        return fail("Python's signal module cannot be imported in %.600s", environment);
    }
    Py_DECREF(module);
    return 0;
}

static int initialize_python(void) {
    PyPreConfig preconfig;
    PyConfig config;
    PyStatus status;
    char program[PATH_MAX + 16];

    publish_python_symbols();
    PyPreConfig_InitIsolatedConfig(&preconfig);
    preconfig.utf8_mode = 1; /* whatever LANG says */
    status = Py_PreInitialize(&preconfig);
    if (PyStatus_Exception(status))
        return fail("Python cannot start: %s", status.err_msg ? status.err_msg : "unknown reason");
    PyConfig_InitIsolatedConfig(&config); /* no PYTHON* variables, no signal handlers */
    config.write_bytecode = 0;
    config.pathconfig_warnings = 0;
    snprintf(program, sizeof program, "%s/bin/python3", environment);
    status = PyConfig_SetBytesString(&config, &config.program_name, program);
    if (!PyStatus_Exception(status))
        status = PyConfig_SetBytesString(&config, &config.executable, program);
    if (!PyStatus_Exception(status))
        status = Py_InitializeFromConfig(&config);
    PyConfig_Clear(&config);
    if (PyStatus_Exception(status))
        return fail("Python cannot start in %.600s: %.300s", environment,
                    status.err_msg ? status.err_msg : "unknown reason");
    int ready = import_signal_module();
    (void)PyEval_SaveThread();
    return ready;
}

static void *own_interpreter(void *unused) {
    (void)unused;
    int ready = initialize_python() == 0 && bind_python() == 0;

    pthread_mutex_lock(&lock);
    atomic_store(&state, ready ? READY : FAILED);
    pthread_cond_broadcast(&changed);
    /* This thread's interpreter state was there when modules were imported, and some
     * keep a pointer to it: it must never end. */
    while (!exit_asked)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    if (ready)
        boundary_cancel_everything();
    for (;;)
        pause();
    return NULL;
}

static int adopt_interpreter(void) {
    char expected[32];
    const char *running = Py_GetVersion();

    snprintf(expected, sizeof expected, "%d.%d.", PY_MAJOR_VERSION, PY_MINOR_VERSION);
    if (strncmp(running, expected, strlen(expected)) != 0)
        return fail("this process runs Python %.*s, the library was built for %d.%d; use that "
                    "Python or rebuild the library",
                    (int)strcspn(running, " "), running, PY_MAJOR_VERSION, PY_MINOR_VERSION);
    return bind_python();
}

static int start_thread(void) {
    pthread_attr_t attributes;
    pthread_t thread;
    sigset_t all, before;
    int failed;

    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, INTERPRETER_STACK_BYTES);
    sigfillset(&all); /* signals belong to the host's threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    failed = pthread_create(&thread, &attributes, own_interpreter, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return failed ? fail("no thread for Python: %s", strerror(failed)) : 0;
}

static void in_child(void) {
    int now = atomic_load(&state);

    if (now != IDLE && now != FAILED)
        atomic_store(&state, FORKED);
}

/* Called with the lock held and the state IDLE. */
static void start(const char *asked) {
    atomic_store(&state, STARTING);
    resident_before = resident_now();
    pthread_atfork(NULL, NULL, in_child);
    /* Python's symbols are the host's if it is a Python: ask before anything else. */
    int adopt = Py_IsInitialized();
    if (find_environment(asked) != 0) {
        atomic_store(&state, FAILED);
    } else if (adopt) {
        pthread_mutex_unlock(&lock);
        int adopted = adopt_interpreter() == 0;
        pthread_mutex_lock(&lock);
        atomic_store(&state, adopted ? READY : FAILED);
    } else if (start_thread() != 0) {
        atomic_store(&state, FAILED);
    }
    pthread_cond_broadcast(&changed);
}

int boundary_started(void) {
    return atomic_load(&state) != IDLE;
}

int boundary_forked(void) {
    return atomic_load(&state) == FORKED;
}

static semantic_status refuse(int now, semantic_error *error) {
    switch (now) {
    case FAILED:
        return boundary_fail(error, SEMANTIC_INTERPRETER, failure);
    case FORKED:
        return boundary_fail(error, SEMANTIC_INTERPRETER,
                             "this process was forked from one that used the library; call exec, "
                             "or fork before the first call");
    default:
        return boundary_fail(error, SEMANTIC_CLOSED, "the process is exiting");
    }
}

static semantic_status check_environment(const char *asked, semantic_error *error) {
    char resolved[PATH_MAX], message[sizeof error->message];

    if (asked == NULL || asked[0] == '\0' ||
        (realpath(asked, resolved) != NULL && strcmp(resolved, environment) == 0))
        return SEMANTIC_OK;
    snprintf(message, sizeof message,
             "Python already runs in %.400s and cannot move to %.400s; name it in the first call",
             environment, is_plain_path(asked) ? asked : "a path that is not UTF-8");
    cut_at_character(message);
    return boundary_fail(error, SEMANTIC_ALREADY_EXISTS, message);
}

/* Asked before anything is changed, so that the next call may try again. */
static semantic_status require_memory_for_start(semantic_error *error) {
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    unsigned long mebibytes = START_MEBIBYTES;
    char message[128];

    mebibytes += START_MEBIBYTES_PER_PROCESSOR * (unsigned long)(processors < 1    ? 1
                                                                 : processors > 64 ? 64
                                                                                   : processors);
    void *probe = mmap(NULL, mebibytes << 20, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (probe != MAP_FAILED) {
        munmap(probe, mebibytes << 20);
        return SEMANTIC_OK;
    }
    snprintf(message, sizeof message,
             "the system refused %lu MiB of address space to start Python; raise the limit "
             "(ulimit -v)",
             mebibytes);
    return boundary_fail(error, SEMANTIC_OUT_OF_MEMORY, message);
}

static semantic_status enter(const char *asked, semantic_error *error) {
    int now = atomic_load(&state);

    if (now == IDLE || now == STARTING) {
        pthread_mutex_lock(&lock);
        if (atomic_load(&state) == IDLE) {
            semantic_status status = require_memory_for_start(error);
            if (status != SEMANTIC_OK) {
                pthread_mutex_unlock(&lock);
                return status;
            }
            start(asked);
        }
        while ((now = atomic_load(&state)) == STARTING)
            pthread_cond_wait(&changed, &lock);
        pthread_mutex_unlock(&lock);
    }
    if (now != READY)
        return refuse(now, error);
    if (asked != NULL) {
        semantic_status status = check_environment(asked, error);
        if (status != SEMANTIC_OK)
            return status;
    }
    atomic_fetch_add(&in_flight, 1);
    now = atomic_load(&state); /* exiting may have begun in between */
    if (now != READY) {
        atomic_fetch_sub(&in_flight, 1);
        return refuse(now, error);
    }
    inside = 1;
    return SEMANTIC_OK;
}

/* A thread that were cancelled in here would end the process, or keep its locks for ever: that
 * waits until the call has ended. */
semantic_status boundary_enter(const char *asked, semantic_error *error) {
    int before;

    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    semantic_status status = enter(asked, error);
    if (status != SEMANTIC_OK)
        pthread_setcancelstate(before, NULL);
    else
        cancellable = before;
    return status;
}

semantic_status boundary_leave(semantic_status status, const void **result, semantic_error *error) {
    int answered = status == SEMANTIC_OK || status == SEMANTIC_PARTIAL;

    inside = 0;
    atomic_fetch_sub(&in_flight, 1);
    if (status < SEMANTIC_OK || status > SEMANTIC_PARTIAL) {
        status = boundary_fail(error, SEMANTIC_INTERNAL, "Python answered with an unknown status");
        answered = 0;
    }
    if (result != NULL && answered && *result == NULL) {
        status = boundary_fail(error, SEMANTIC_INTERNAL, "Python answered without a result");
        answered = 0;
    }
    if (result != NULL && !answered) {
        semantic_free(*result);
        *result = NULL;
    }
    if (status == SEMANTIC_OK)
        boundary_set_error(error, SEMANTIC_OK, -1, "", 0);
    pthread_setcancelstate(cancellable, NULL);
    return status;
}

/* ---- Exit --------------------------------------------------------------- */

static int is_starting(void) {
    return atomic_load(&state) == STARTING;
}

static int calls_are_in_flight(void) {
    return atomic_load(&in_flight) != 0;
}

/* Whether it ended within the grace that the end of a process allows. */
static int wait_while(int (*busy)(void)) {
    const struct timespec step = {0, 1000000};
    struct timespec begin, now;

    clock_gettime(CLOCK_MONOTONIC, &begin);
    while (busy()) {
        clock_gettime(CLOCK_MONOTONIC, &now);
        if ((double)(now.tv_sec - begin.tv_sec) + (double)(now.tv_nsec - begin.tv_nsec) / 1e9 >
            EXIT_GRACE_SECONDS)
            return 0;
        nanosleep(&step, NULL);
    }
    return 1;
}

static int refuse_new_calls(void) {
    int ready = READY;

    return atomic_compare_exchange_strong(&state, &ready, EXITING);
}

/* Refuse new calls, cancel the rest and wait for it: a call inside ONNX Runtime while its
 * globals are torn down would crash the process. Where they cannot be torn down, because
 * a call does not end or because the threads they wait for are in the parent of a fork,
 * the process ends here, with the code it was to end with. */
static void at_exit(int code, void *unused) {
    (void)unused;
    if (inside) { /* a signal handler calls exit within a call, which thus cannot end */
        fflush(stdout);
        _exit(code);
    }
    int clean = wait_while(is_starting);

    if (refuse_new_calls() && calls_are_in_flight()) {
        pthread_mutex_lock(&lock);
        exit_asked = 1;
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&lock);
    }
    if (atomic_load(&state) == FORKED) {
        fflush(NULL);
        _exit(code);
    }
    if (!clean || gave_up || !wait_while(calls_are_in_flight)) {
        fflush(stdout); /* another thread may hold the lock of any other file for ever */
        _exit(code);
    }
}

/* An adopted interpreter ends before the exit handlers run, and with it the threads that
 * are inside a call. */
void boundary_end_calls(void) {
    if (!refuse_new_calls())
        return;
    boundary_cancel_everything();
    gave_up = !wait_while(calls_are_in_flight);
}
