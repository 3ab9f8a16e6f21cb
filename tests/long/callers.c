/* Many callers of four models that are replaced, unloaded and loaded meanwhile:
 *   callers SECONDS CALLERS SEED MODELS
 * MODELS is the folder of the golden models. A quiet run at first finds the right answers; then
 * every answer must be the one of the folder that stood behind its handle in its generation. It
 * prints ten lines or one every ten seconds, and ends with code 99 and the reason at the first
 * wrong answer, with 98 and the stacks of all callers when a call does not end. */
#define _GNU_SOURCE
#include "../abi/check.h"

#include <execinfo.h>
#include <limits.h>
#include <malloc.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <time.h>

#define CHANGERS 2
#define TEXTS 24
#define MOST_ROWS 8
#define MOST_NUMBERS 8192
#define MOST_GENERATIONS 8
#define MOST_FOLDERS 3
#define KEYS 4
#define TOLERANCE 1e-5
#define PATIENCE 60.0 /* seconds that a call may take */
#define LINE_SECONDS 10.0
#define STACK (1 << 20)
#define TOUCHED (STACK / 4 * 3)
#define MANY 4096 /* rows: more than all callers together ask */

enum { SEQUENCE, TOKENS, VECTORS, TASKS };
enum { MAIN, SECOND, COUNT, KINDS }; /* of calls: two that the task has, and counting tokens */
enum { COMPLETED, FAILED, EXPIRED, CANCELLED, REFUSED, COUNTERS };
enum { SLOTS = 4 };

/* The models that take turns in a slot. */
static const struct slot {
    const char *name;
    int task;
    int64_t queue_rows; /* few: callers are refused */
    int count;
    struct {
        const char *path;
        semantic_adapter_mode mode;
    } folders[MOST_FOLDERS];
} slots[SLOTS] = {
    {"sequences", SEQUENCE, 48, 2, {{"roberta-seq", 0}, {"bert-seq", 0}}},
    {"tokens", TOKENS, MANY, 2, {{"modernbert-token", 0}, {"deberta-v3-token", 0}}},
    {"vectors", VECTORS, MANY, 2, {{"qwen3-embed-last", 0}, {"gemma3-embed-mean", 0}}},
    {"adapters",
     SEQUENCE,
     MANY,
     3,
     {{"modernbert-lora-base/adapters/domain", SEMANTIC_ADAPTER_SHARED},
      {"modernbert-lora-base/adapters/guard", SEMANTIC_ADAPTER_SHARED},
      {"modernbert-lora-base/adapters/domain", SEMANTIC_ADAPTER_MERGED}}},
};

/* A handle from its load to its unload; never freed, since callers may still hold it. */
typedef struct life {
    semantic_model model;
    _Atomic int folder[MOST_GENERATIONS + 1]; /* by generation, noted before it can answer */
    _Atomic int generation;
    _Atomic int ending; /* from here on a call may be CLOSED or NOT_READY */
} life;

typedef struct answer {
    size_t count;
    double numbers[];
} answer;

typedef union result {
    const void *block;
    const semantic_classification *classes;
    const semantic_token_classification *parts;
    const semantic_embedding *vectors;
    const semantic_token_counts *counts;
} result;

/* What a thread does, for whoever looks for one that hangs. */
typedef struct worker {
    pthread_t thread;
    int number;
    uint64_t random;
    _Atomic double since; /* 0: in no call */
    const char *_Atomic what;
    _Atomic int ended;
} worker;

static const char *root;
static long callers;
static double began;
static _Atomic(life *) lives[SLOTS];
static pthread_mutex_t changing[SLOTS];
static answer *right[SLOTS][MOST_FOLDERS][KINDS][TEXTS];
static semantic_text texts[TEXTS];
static const semantic_text other = {"The router sends it on.", 23};
static worker *workers;
static _Atomic int over;
static _Atomic long asked, answered[COUNTERS], calls, turned_away;
static _Atomic long loads, replaces, failed_replaces, unloads;

static double now(void) {
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void rest(double seconds) {
    struct timespec time = {(time_t)seconds, (long)(1e9 * (seconds - (double)(time_t)seconds))};

    nanosleep(&time, NULL);
}

__attribute__((format(printf, 1, 2), noreturn)) static void give_up(const char *form, ...) {
    va_list arguments;

    fprintf(stderr, "after %.1f s: ", now() - began);
    va_start(arguments, form);
    vfprintf(stderr, form, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    _exit(99);
}

/* splitmix64, by Sebastiano Vigna. */
static uint64_t draw(uint64_t *state, uint64_t below) {
    uint64_t z = *state += 0x9e3779b97f4a7c15;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return (z ^ (z >> 31)) % below;
}

static void begin(worker *self, const char *what) {
    self->what = what;
    self->since = now();
}

static void finish(worker *self) {
    self->since = 0;
}

/* ---- Answers */

static semantic_status ask(int slot, int kind, semantic_model model, const semantic_text *rows,
                           size_t n, semantic_run_options *run, result *out,
                           semantic_error *error) {
    semantic_text right_parts[MOST_ROWS];

    if (kind == COUNT)
        return semantic_count_tokens(model, rows, n, run, &out->counts, error);
    switch (slots[slot].task) {
    case TOKENS:
        run->output = kind == MAIN ? SEMANTIC_OUTPUT_ENTITIES : SEMANTIC_OUTPUT_TOKENS;
        return semantic_classify_tokens(model, rows, n, run, &out->parts, error);
    case VECTORS:
        run->normalize = kind == MAIN ? SEMANTIC_NORMALIZE_ON : SEMANTIC_NORMALIZE_OFF;
        return semantic_embed(model, rows, n, run, &out->vectors, error);
    default:
        if (kind == MAIN)
            return semantic_classify(model, rows, n, run, &out->classes, error);
        for (size_t i = 0; i < n; i++)
            right_parts[i] = other;
        run->shorten = SEMANTIC_SHORTEN_FIRST;
        return semantic_classify_pairs(model, rows, right_parts, n, run, &out->classes, error);
    }
}

static const semantic_rows *rows_of(int slot, int kind, result found, uint64_t *generation) {
    if (kind == COUNT)
        return *generation = found.counts->generation, found.counts->rows;
    if (slots[slot].task == TOKENS)
        return *generation = found.parts->generation, found.parts->rows;
    if (slots[slot].task == VECTORS)
        return *generation = found.vectors->generation, found.vectors->rows;
    return *generation = found.classes->generation, found.classes->rows;
}

/* All that a row says, as numbers; return how many. */
static size_t numbers_of(int slot, int kind, result found, size_t row, double *into) {
    uint64_t generation;
    const semantic_rows *rows = rows_of(slot, kind, found, &generation);
    size_t n = 0, width;

    into[n++] = (double)rows->token_count[row];
    into[n++] = (double)rows->scored_token_count[row];
    into[n++] = (double)rows->window_count[row];
    if (kind == COUNT) {
        for (int64_t i = found.counts->row_start[row]; i < found.counts->row_start[row + 1]; i++) {
            into[n++] = (double)found.counts->window_start[i];
            into[n++] = (double)found.counts->window_end[i];
        }
    } else if (slots[slot].task == TOKENS) {
        width = found.parts->probabilities == NULL ? 0 : found.parts->label_count;
        for (int64_t i = found.parts->row_start[row]; i < found.parts->row_start[row + 1]; i++) {
            CHECK(n + 4 + width <= MOST_NUMBERS);
            into[n++] = (double)found.parts->start[i];
            into[n++] = (double)found.parts->end[i];
            into[n++] = found.parts->label_index[i];
            into[n++] = found.parts->score[i];
            for (size_t j = 0; j < width; j++)
                into[n++] = found.parts->probabilities[(size_t)i * width + j];
        }
    } else if (slots[slot].task == VECTORS) {
        width = found.vectors->dimension;
        for (size_t j = 0; j < width; j++)
            into[n++] = found.vectors->values[row * width + j];
    } else {
        width = found.classes->label_count;
        into[n++] = found.classes->label_index[row];
        for (size_t j = 0; j < width; j++) {
            into[n++] = found.classes->logits[row * width + j];
            into[n++] = found.classes->probabilities[row * width + j];
        }
    }
    CHECK(n <= MOST_NUMBERS);
    return n;
}

static void compare(int slot, int kind, result found, size_t row, int text, int folder) {
    const answer *expected = right[slot][folder][kind][text];
    double numbers[MOST_NUMBERS];
    size_t count = numbers_of(slot, kind, found, row, numbers);

    if (count != expected->count)
        give_up("%s, kind %d, text %d: %zu numbers, %s alone gave %zu", slots[slot].name, kind,
                text, count, slots[slot].folders[folder].path, expected->count);
    for (size_t i = 0; i < count; i++) {
        double size = fmax(1, fabs(expected->numbers[i]));

        /* Written so that a NaN fails. */
        if (!(fabs(numbers[i] - expected->numbers[i]) <= TOLERANCE * size))
            give_up("%s, kind %d, text %d: number %zu is %.9g, %s alone gave %.9g",
                    slots[slot].name, kind, text, i, numbers[i], slots[slot].folders[folder].path,
                    expected->numbers[i]);
    }
}

/* ---- Callers */

static void count(int counter, long rows) {
    atomic_fetch_add(&answered[counter], rows);
}

static int counter_of(semantic_status status) {
    switch (status) {
    case SEMANTIC_OK:
        return COMPLETED;
    case SEMANTIC_DEADLINE:
        return EXPIRED;
    case SEMANTIC_CANCELLED:
        return CANCELLED;
    case SEMANTIC_OVERLOADED:
        return REFUSED;
    default:
        return FAILED;
    }
}

/* Which statuses a call or a row may have, beside OK. */
typedef struct allowed {
    semantic_status call, row0, rows;
} allowed;

static void judge(int slot, int kind, const life *asked_life, const int *chosen, size_t n,
                  allowed may, semantic_status status, result found, const char *message) {
    uint64_t generation;
    const semantic_rows *rows;
    int folder, good = 1;

    if (status != SEMANTIC_OK && status != SEMANTIC_PARTIAL) {
        CHECK(found.block == NULL);
        if (status == SEMANTIC_CLOSED || status == SEMANTIC_NOT_READY) {
            if (!asked_life->ending)
                give_up("%s: %s without an unload: %s", slots[slot].name,
                        semantic_status_name(status), message);
            atomic_fetch_add(&turned_away, 1);
            rest(0.002); /* leave the processor to those who get answers */
            return;
        }
        if (status != may.call && status != may.rows &&
            !(status == SEMANTIC_OVERLOADED && slots[slot].queue_rows < MANY))
            give_up("%s, kind %d, %zu rows: %s: %s", slots[slot].name, kind, n,
                    semantic_status_name(status), message);
        count(counter_of(status), (long)n);
        return;
    }
    CHECK(found.block != NULL);
    rows = rows_of(slot, kind, found, &generation);
    CHECK(rows->count == n && generation >= 1 && generation <= MOST_GENERATIONS);
    folder = asked_life->folder[generation];
    if (folder < 0)
        give_up("%s: generation %lu was never begun", slots[slot].name, (unsigned long)generation);
    for (size_t row = 0; row < n; row++) {
        semantic_status each = rows->status[row];

        count(counter_of(each), 1);
        if (each == SEMANTIC_OK && (row > 0 || may.row0 == SEMANTIC_OK)) {
            compare(slot, kind, found, row, chosen[row], folder);
            continue;
        }
        good = 0;
        if (each == SEMANTIC_OK || (each != may.rows && !(row == 0 && each == may.row0)))
            give_up("%s, kind %d: row %zu of %zu is %s", slots[slot].name, kind, row, n,
                    semantic_status_name(each));
    }
    CHECK(good == (status == SEMANTIC_OK));
}

static void one_call(worker *self) {
    static const int patience[] = {1, 3, 10, 30}, sizes[] = {1, 1, 1, 1, 2, 3, 5, MOST_ROWS};
    semantic_run_options run = SEMANTIC_RUN_OPTIONS_INIT;
    semantic_error error = SEMANTIC_ERROR_INIT;
    semantic_text rows[MOST_ROWS];
    allowed may = {SEMANTIC_OK, SEMANTIC_OK, SEMANTIC_OK};
    int slot = (int)draw(&self->random, SLOTS), chosen[MOST_ROWS];
    int kind = draw(&self->random, 4) < 3 ? MAIN : 1 + (int)draw(&self->random, 2);
    size_t n = (size_t)sizes[draw(&self->random, 8)];
    const life *held = lives[slot];
    result found = {NULL};
    semantic_status status;

    for (size_t i = 0; i < n; i++) {
        chosen[i] = (int)draw(&self->random, TEXTS);
        rows[i] = texts[chosen[i]];
    }
    switch (draw(&self->random, 16)) {
    case 0:
        run.timeout_ms = patience[draw(&self->random, 4)];
        may.call = may.rows = SEMANTIC_DEADLINE;
        break;
    case 1:
        run.cancel_key = 1 + draw(&self->random, KEYS);
        may.call = may.rows = SEMANTIC_CANCELLED;
        break;
    case 2:
        rows[0] = (semantic_text){"\xff", 1};
        may.row0 = SEMANTIC_INVALID_ARGUMENT;
        may.call = n == 1 ? SEMANTIC_INVALID_ARGUMENT : SEMANTIC_OK;
        break;
    }
    atomic_fetch_add(&asked, (long)n);
    begin(self, slots[slot].name);
    status = ask(slot, kind, held->model, rows, n, &run, &found, &error);
    finish(self);
    judge(slot, kind, held, chosen, n, may, status, found, error.message);
    semantic_free(found.block);
    atomic_fetch_add(&calls, 1);
}

/* So that memory does not grow as calls happen to go deeper. */
static __attribute__((noinline)) void touch_stack(void) {
    char all[TOUCHED];

    memset(all, 1, sizeof all);
    __asm__ volatile("" : : "r"(all) : "memory");
}

static void *call_again_and_again(void *argument) {
    worker *self = argument;

    touch_stack();
    while (!over)
        one_call(self);
    self->ended = 1;
    return NULL;
}

/* ---- Hangs */

static void print_stack(int signal) {
    void *frames[64];

    (void)signal;
    backtrace_symbols_fd(frames, backtrace(frames, 64), STDERR_FILENO);
    (void)!write(STDERR_FILENO, "\n", 1);
}

/* Show where every thread is, and end. */
__attribute__((noreturn)) static void show_hang(void) {
    double time = now();

    for (long i = 0; i < callers + CHANGERS; i++) {
        double since = workers[i].since;

        if (workers[i].ended || since == 0)
            continue;
        fprintf(stderr, "thread %d: %s for %.1f s\n", workers[i].number, workers[i].what,
                time - since);
        pthread_kill(workers[i].thread, SIGUSR2);
        rest(0.02);
    }
    puts("hang"); /* whoever reads this has the time to look at the stacks of Python */
    rest(20);
    _exit(98);
}

/* ---- Loads, replacements, unloads */

static semantic_status load(int slot, int folder, const char *path, semantic_model replaced,
                            semantic_model *model, semantic_error *error) {
    semantic_load_options options = SEMANTIC_LOAD_OPTIONS_INIT;
    char full[4096];

    if (replaced.id == 0)
        options.name = slots[slot].name;
    options.replaces = replaced;
    options.queue_rows = slots[slot].queue_rows;
    options.queue_tokens = 1 << 20;
    options.adapter_mode = slots[slot].folders[folder].mode;
    snprintf(full, sizeof full, "%s/%s", root, path);
    return semantic_load_model(full, &options, model, error);
}

static void load_anew(int slot, int folder) {
    semantic_error error = SEMANTIC_ERROR_INIT;
    semantic_model found;
    life *born = calloc(1, sizeof *born);

    CHECK(born != NULL);
    for (int i = 0; i <= MOST_GENERATIONS; i++)
        born->folder[i] = i == 1 ? folder : -1;
    born->generation = 1;
    CHECK_OK(load(slot, folder, slots[slot].folders[folder].path, (semantic_model){0}, &born->model,
                  &error),
             &error);
    CHECK_OK(semantic_find_model(slots[slot].name, &found, &error), &error);
    CHECK(found.id == born->model.id);
    lives[slot] = born;
    atomic_fetch_add(&loads, 1);
}

static void replace(int slot, int folder) {
    semantic_error error = SEMANTIC_ERROR_INIT;
    semantic_model same = {0};
    life *held = lives[slot];

    held->folder[held->generation + 1] = folder;
    CHECK_OK(load(slot, folder, slots[slot].folders[folder].path, held->model, &same, &error),
             &error);
    CHECK(same.id == held->model.id);
    held->generation++;
    atomic_fetch_add(&replaces, 1);
}

static void replace_by_nothing(int slot) {
    semantic_error error = SEMANTIC_ERROR_INIT;
    semantic_model none = {0};

    CHECK(load(slot, 0, "nowhere", lives[slot]->model, &none, &error) == SEMANTIC_NOT_FOUND);
    CHECK(none.id == 0);
    atomic_fetch_add(&failed_replaces, 1);
}

static void unload(int slot, int64_t timeout_ms) {
    semantic_error error = SEMANTIC_ERROR_INIT;
    life *held = lives[slot];
    semantic_status status;

    held->ending = 1;
    status = semantic_unload_model(held->model, timeout_ms, &error);
    if (status == SEMANTIC_DEADLINE && timeout_ms < 100)
        status = semantic_unload_model(held->model, 30000, &error);
    if (status == SEMANTIC_DEADLINE) {
        fprintf(stderr, "an unload waits: %s\n", error.message);
        show_hang();
    }
    CHECK_OK(status, &error);
    CHECK(semantic_unload_model(held->model, 0, &error) == SEMANTIC_CLOSED);
    atomic_fetch_add(&unloads, 1);
}

static void *change_again_and_again(void *argument) {
    static const int64_t timeouts[] = {0, 5, 30000};
    worker *self = argument;

    while (!over) {
        int slot = (int)draw(&self->random, SLOTS), kind = (int)draw(&self->random, 10);
        int folder = (int)draw(&self->random, (uint64_t)slots[slot].count);

        pthread_mutex_lock(&changing[slot]);
        if (kind == 0) {
            begin(self, "a replacement by nothing");
            replace_by_nothing(slot);
        } else if (kind < 7 && lives[slot]->generation < MOST_GENERATIONS) {
            begin(self, "a replacement");
            replace(slot, folder);
        } else {
            begin(self, "an unload");
            unload(slot, timeouts[draw(&self->random, 3)]);
            begin(self, "a load");
            load_anew(slot, folder);
        }
        finish(self);
        pthread_mutex_unlock(&changing[slot]);
        rest(0.05 + 0.001 * (double)draw(&self->random, 400));
    }
    self->ended = 1;
    return NULL;
}

/* ---- Whoever watches */

/* Return how long the oldest call has been running; end if that is too long. */
static double look_for_hangs(void) {
    double oldest = 0, time = now();

    for (long i = 0; i < callers + CHANGERS; i++) {
        double since = workers[i].since;

        if (since > 0)
            oldest = fmax(oldest, time - since);
    }
    if (oldest > PATIENCE)
        show_hang();
    return oldest;
}

/* Sums of the counters, balanced entry by entry; return the sum in flight. */
static uint64_t read_books(uint64_t sums[COUNTERS], uint64_t *unfreed) {
    semantic_error error = SEMANTIC_ERROR_INIT;
    const semantic_stats *stats;
    uint64_t in_flight = 0;

    CHECK_OK(semantic_get_stats(&stats, &error), &error);
    memset(sums, 0, COUNTERS * sizeof *sums);
    for (size_t i = 0; i < stats->call_count; i++) {
        const uint64_t each[COUNTERS] = {stats->completed[i], stats->failed[i], stats->expired[i],
                                         stats->cancelled[i], stats->refused[i]};
        uint64_t ended = each[COMPLETED] + each[FAILED] + each[EXPIRED] + each[CANCELLED];

        if (stats->accepted[i] != ended + stats->in_flight[i])
            give_up("%.*s, call %d: %lu accepted, %lu ended, %lu in flight",
                    (int)stats->call_model_name[i].length, stats->call_model_name[i].data,
                    stats->call[i], (unsigned long)stats->accepted[i], (unsigned long)ended,
                    (unsigned long)stats->in_flight[i]);
        for (int j = 0; j < COUNTERS; j++)
            sums[j] += each[j];
        in_flight += stats->in_flight[i];
    }
    *unfreed = stats->results_unfreed;
    semantic_free(stats);
    return in_flight;
}

/* What callers had been told before is in the counters, and no more than they had asked after. */
static void reconcile(const uint64_t first[COUNTERS], uint64_t last[COUNTERS]) {
    uint64_t sums[COUNTERS], in_flight, all = 0, unfreed;
    long told[COUNTERS], most;

    for (int i = 0; i < COUNTERS; i++)
        told[i] = answered[i];
    in_flight = read_books(sums, &unfreed);
    most = asked;
    for (int i = 0; i < COUNTERS; i++) {
        if (sums[i] < last[i] || sums[i] < first[i] + (uint64_t)told[i])
            give_up("counter %d: %lu, before that %lu, callers were told %ld", i,
                    (unsigned long)(sums[i] - first[i]), (unsigned long)(last[i] - first[i]),
                    told[i]);
        all += sums[i] - first[i];
    }
    if (all + in_flight > (uint64_t)most)
        give_up("%lu rows ended, %lu are in flight, %ld were asked", (unsigned long)all,
                (unsigned long)in_flight, most);
    memcpy(last, sums, COUNTERS * sizeof *last);
}

static long resident_kilobytes(void) {
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");

    CHECK(file != NULL);
    CHECK(fscanf(file, "%*s %ld", &pages) == 1);
    fclose(file);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

static void watch(double seconds, uint64_t seed, const uint64_t first[COUNTERS]) {
    double period = fmin(LINE_SECONDS, seconds / 10), line = began + period;
    uint64_t last[COUNTERS];
    long looks = 0, used, least = LONG_MAX;

    memcpy(last, first, sizeof last);
    while (line <= began + seconds + period / 2) {
        double oldest = look_for_hangs();
        semantic_status status = semantic_cancel(1 + draw(&seed, KEYS));

        CHECK(status == SEMANTIC_OK || status == SEMANTIC_NOT_FOUND);
        reconcile(first, last);
        looks++;
        /* Of the looks of a line the least counts: a model that is being replaced stands there
         * twice. */
        used = (long)(mallinfo2().uordblks / 1024);
        least = used < least ? used : least;
        if (now() >= line) {
            printf("%4.0f s: %ld calls, rows %ld right, %ld broken, %ld late, %ld cancelled, %ld "
                   "refused, %ld calls turned away; %ld loads, %ld replaces, %ld failed, %ld "
                   "unloads; %ld balances; oldest call %.2f s; %ld kB resident, "
                   "%ld kB used of the C heap\n",
                   now() - began, calls, answered[COMPLETED], answered[FAILED], answered[EXPIRED],
                   answered[CANCELLED], answered[REFUSED], turned_away, loads, replaces,
                   failed_replaces, unloads, looks, oldest, resident_kilobytes(), least);
            line += period;
            least = LONG_MAX;
        }
        rest(0.03);
    }
}

static void stop(void) {
    over = 1;
    for (long i = 0; i < callers + CHANGERS; i++) {
        while (!workers[i].ended) {
            look_for_hangs();
            rest(0.01);
        }
        CHECK(pthread_join(workers[i].thread, NULL) == 0);
    }
}

/* ---- Begin and end */

static void write_texts(void) {
    static const char *const words[] = {
        "math ",   "law ",      "What is ",   "x squared? ", "café ",  "数学 ",  "😀 ",
        "router ", "Jane Doe ", "in Paris, ", "the sum ",    "of 42 ", "code\n", "Ärger "};
    static const int lengths[] = {1, 2, 3, 5, 8, 20, 60, 110};
    uint64_t state = 1; /* the same texts in every run */

    for (int i = 0; i < TEXTS; i++) {
        int length = lengths[i % 8];
        char *text = calloc((size_t)length, 16);

        CHECK(text != NULL);
        for (int j = 0; j < length; j++)
            strcat(text, words[draw(&state, sizeof words / sizeof *words)]);
        texts[i] = (semantic_text){text, strlen(text)};
    }
}

/* One text at a time, while nothing else runs. */
static void find_right_answers(void) {
    semantic_error error = SEMANTIC_ERROR_INIT;
    double numbers[MOST_NUMBERS];

    for (int slot = 0; slot < SLOTS; slot++)
        for (int folder = 0; folder < slots[slot].count; folder++) {
            load_anew(slot, folder);
            for (int kind = 0; kind < KINDS; kind++)
                for (int i = 0; i < TEXTS; i++) {
                    semantic_run_options run = SEMANTIC_RUN_OPTIONS_INIT;
                    result found = {NULL};
                    answer *kept;
                    size_t n;

                    CHECK_OK(
                        ask(slot, kind, lives[slot]->model, &texts[i], 1, &run, &found, &error),
                        &error);
                    n = numbers_of(slot, kind, found, 0, numbers);
                    kept = malloc(sizeof *kept + n * sizeof *numbers);
                    CHECK(kept != NULL);
                    kept->count = n;
                    memcpy(kept->numbers, numbers, n * sizeof *numbers);
                    right[slot][folder][kind][i] = kept;
                    semantic_free(found.block);
                }
            unload(slot, 5000);
        }
}

static void start(uint64_t seed) {
    pthread_attr_t small;

    CHECK(pthread_attr_init(&small) == 0 && pthread_attr_setstacksize(&small, STACK) == 0);
    for (long i = 0; i < callers + CHANGERS; i++) {
        workers[i].number = (int)i;
        workers[i].random = seed * 1000003 + (uint64_t)i;
        CHECK(pthread_create(&workers[i].thread, &small,
                             i < callers ? call_again_and_again : change_again_and_again,
                             &workers[i]) == 0);
    }
}

int main(int argc, char **argv) {
    struct sigaction action = {.sa_handler = print_stack, .sa_flags = SA_RESTART};
    semantic_error error = SEMANTIC_ERROR_INIT;
    uint64_t first[COUNTERS], last[COUNTERS], seed, unfreed;
    double seconds;
    void *frame;

    CHECK(argc == 5);
    seconds = strtod(argv[1], NULL);
    callers = strtol(argv[2], NULL, 10);
    seed = strtoull(argv[3], NULL, 10);
    root = argv[4];
    CHECK(seconds > 0 && callers > 0);
    workers = calloc((size_t)(callers + CHANGERS), sizeof *workers);
    CHECK(workers != NULL);
    CHECK(backtrace(&frame, 1) == 1); /* loads what the handler must not load */
    CHECK(sigaction(SIGUSR2, &action, NULL) == 0);
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int slot = 0; slot < SLOTS; slot++)
        CHECK(pthread_mutex_init(&changing[slot], NULL) == 0);
    write_texts();
    began = now();
    find_right_answers();
    for (int slot = 0; slot < SLOTS; slot++)
        load_anew(slot, 0);
    CHECK(read_books(first, &unfreed) == 0);
    loads = replaces = failed_replaces = unloads = 0;
    began = now();
    start(seed);
    watch(seconds, seed, first);
    stop();
    CHECK(read_books(last, &unfreed) == 0);
    for (int i = 0; i < COUNTERS; i++)
        if (last[i] - first[i] != (uint64_t)answered[i])
            give_up("at the end counter %d says %lu rows, callers were told %ld", i,
                    (unsigned long)(last[i] - first[i]), answered[i]);
    CHECK_OK(semantic_cleanup(30000, &error), &error);
    read_books(last, &unfreed);
    CHECK(unfreed == 0);
    printf("reconciled: %ld calls, %ld rows right\n", calls, answered[COMPLETED]);
    return 0;
}
