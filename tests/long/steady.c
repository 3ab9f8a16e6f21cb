/* A host that lives long; it prints its resident kilobytes, a line for each share of the work:
 *   steady calls COUNT MODELS      calls of mixed lengths and functions, 100 lines
 *   steady failures COUNT MODELS   calls that fail, each in another way, 100 lines
 *   steady loads COUNT MODELS      all models loaded, asked and unloaded, COUNT lines
 *   steady adapters COUNT MODELS   the same of adapters, on a base they share and merged
 *   steady crowd COUNT MODELS      three waves of COUNT callers; threads and kilobytes, 3 lines
 * MODELS is the folder of the golden models. */
#include "../abi/check.h"

#include <dirent.h>
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#define LINES 100
#define CALLERS 2
#define MIXTURE 1000 /* calls after which lengths repeat: every line of output has seen all */
#define MOST_ROWS 32
#define MOST_TOKENS 2000

enum { SEQUENCE, TOKENS, VECTORS, RANKS, MODELS };

static const char *const folders[MODELS] = {
    [SEQUENCE] = "bert-seq",
    [TOKENS] = "bert-token",
    [VECTORS] = "bert-embed-mean",
    [RANKS] = "bert-reranker",
};
static semantic_model models[MODELS];
static char words[5 * MOST_TOKENS];
static long total;
static _Atomic long next;
static pthread_mutex_t printing = PTHREAD_MUTEX_INITIALIZER;

static long resident_kilobytes(void) {
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");

    CHECK(file != NULL);
    CHECK(fscanf(file, "%*s %ld", &pages) == 1);
    fclose(file);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

static int threads(void) {
    DIR *tasks = opendir("/proc/self/task");
    int count = 0;

    CHECK(tasks != NULL);
    for (struct dirent *task = readdir(tasks); task != NULL; task = readdir(tasks))
        count += task->d_name[0] != '.';
    closedir(tasks);
    return count;
}

static void load(const char *root, int which, const char *name) {
    semantic_load_options options = SEMANTIC_LOAD_OPTIONS_INIT;
    semantic_error error = SEMANTIC_ERROR_INIT;
    char path[4096];

    options.name = name;
    options.max_text_bytes = 5 * MOST_TOKENS;
    snprintf(path, sizeof path, "%s/%s", root, folders[which]);
    CHECK_OK(semantic_load_model(path, &options, &models[which], &error), &error);
}

static void load_all(const char *root) {
    for (int which = 0; which < MODELS; which++)
        load(root, which, folders[which]);
}

/* Words of one token each. */
static semantic_text text_of(int tokens) {
    return (semantic_text){words, (size_t)tokens * 5 - 1};
}

static void ask(int which, const semantic_text *texts, size_t n, const semantic_run_options *run) {
    semantic_error error = SEMANTIC_ERROR_INIT;
    const semantic_classification *classes;
    const semantic_token_classification *parts;
    const semantic_embedding *vectors;

    switch (which) {
    case TOKENS:
        CHECK_OK(semantic_classify_tokens(models[which], texts, n, run, &parts, &error), &error);
        CHECK(parts->rows->count == n && parts->rows->status[n - 1] == SEMANTIC_OK);
        semantic_free(parts);
        break;
    case VECTORS:
        CHECK_OK(semantic_embed(models[which], texts, n, run, &vectors, &error), &error);
        CHECK(vectors->rows->count == n && vectors->values[0] == vectors->values[0]);
        semantic_free(vectors);
        break;
    default:
        CHECK_OK(semantic_classify(models[which], texts, n, run, &classes, &error), &error);
        CHECK(classes->rows->count == n && classes->label_index[n - 1] >= 0);
        semantic_free(classes);
    }
}

/* Of 1,000 calls 950 are short, 38 middling, 10 long, and 2 have 32 rows: as many long ones as
 * fit into the time. */
static void mixed_call(long number) {
    semantic_run_options run = SEMANTIC_RUN_OPTIONS_INIT;
    semantic_text texts[MOST_ROWS];
    long place = number % MIXTURE;
    int rows = 1, most = 20;

    if (place % 500 == 499) {
        rows = MOST_ROWS;
        most = place > 500 ? MOST_TOKENS : 200;
    } else if (place % 100 == 7) {
        rows = 1 + (int)(place / 300);
        most = MOST_TOKENS;
    } else if (place % 26 == 3) {
        rows = 1 + (int)(place % 8);
        most = 300;
    }
    for (int i = 0; i < rows; i++)
        texts[i] = text_of(1 + (int)((place * 7919 + i * 104729) % most));
    if (rows == 1)
        texts[0] = text_of(most == MOST_TOKENS ? most : 1 + (int)(place * 7919 % most));
    run.timeout_ms = place % 3 == 0 ? 60000 : 0;
    run.long_text = place % 2 ? SEMANTIC_LONG_TEXT_CUT : SEMANTIC_LONG_TEXT_WINDOWS;
    ask((int)(place % 3), texts, (size_t)rows, &run);
}

/* Every way to fail that depends on the caller alone. */
static void failing_call(long number) {
    semantic_load_options options = SEMANTIC_LOAD_OPTIONS_INIT;
    semantic_run_options run = SEMANTIC_RUN_OPTIONS_INIT;
    semantic_error error = SEMANTIC_ERROR_INIT;
    char name[32];
    semantic_model closed = {1}, unknown = {1 << 20}, none = {0}, found = {9};
    semantic_text text = text_of(1 + (int)(number % 40)), texts[2] = {{"a", 1}, {"\xff", 1}};
    const semantic_classification *result = NULL;
    const semantic_embedding *vectors = NULL;
    const semantic_model_info *info = NULL;
    semantic_status status, expected = SEMANTIC_INVALID_ARGUMENT;

    switch (number % 16) {
    case 0:
        status = semantic_classify(none, &text, 1, NULL, &result, &error);
        break;
    case 1:
        status = semantic_classify(unknown, &text, 1, NULL, &result, &error);
        expected = SEMANTIC_NOT_FOUND;
        break;
    case 2:
        status = semantic_classify(closed, &text, 1, NULL, &result, &error);
        expected = SEMANTIC_CLOSED;
        break;
    case 3:
        status = semantic_embed(models[SEQUENCE], &text, 1, NULL, &vectors, &error);
        expected = SEMANTIC_UNSUPPORTED;
        break;
    case 4:
        status = semantic_classify(models[SEQUENCE], texts + 1, 1, NULL, &result, &error);
        break;
    case 5:
        text.data = NULL;
        status = semantic_classify(models[SEQUENCE], &text, 1, NULL, &result, &error);
        break;
    case 6:
        text = (semantic_text){words, sizeof words + 1};
        status = semantic_classify(models[SEQUENCE], &text, 1, NULL, &result, &error);
        expected = SEMANTIC_TOO_LONG;
        break;
    case 7:
        run.window_overlap = -1;
        status = semantic_classify(models[SEQUENCE], &text, 1, &run, &result, &error);
        break;
    case 8:
        run.layer = 99;
        status = semantic_embed(models[VECTORS], &text, 1, &run, &vectors, &error);
        break;
    case 9:
        run.prompt_name = "unheard of";
        status = semantic_embed(models[VECTORS], &text, 1, &run, &vectors, &error);
        expected = SEMANTIC_NOT_FOUND;
        break;
    case 10:
        status = semantic_find_model("nobody", &found, &error);
        expected = SEMANTIC_NOT_FOUND;
        CHECK(found.id == 0);
        break;
    case 11:
        status = semantic_get_model_info(closed, &info, &error);
        expected = SEMANTIC_CLOSED;
        break;
    case 12:
        snprintf(name, sizeof name, "%ld", number);
        options.name = name;
        status = semantic_load_model("/nowhere", &options, &found, &error);
        expected = SEMANTIC_NOT_FOUND;
        break;
    case 13:
        status = semantic_unload_model(closed, 0, &error);
        expected = SEMANTIC_CLOSED;
        break;
    case 14: /* in part */
        status = semantic_classify(models[SEQUENCE], texts, 2, NULL, &result, &error);
        expected = SEMANTIC_PARTIAL;
        CHECK(result != NULL && error.input_index == 1);
        semantic_free(result);
        result = NULL;
        break;
    default:
        text = text_of(200);
        run.long_text = SEMANTIC_LONG_TEXT_REFUSE;
        status = semantic_classify(models[SEQUENCE], &text, 1, &run, &result, &error);
        expected = SEMANTIC_TOO_LONG;
    }
    CHECK(status == expected && error.status == expected && error.message[0] != '\0');
    CHECK(result == NULL && vectors == NULL && info == NULL);
}

static void *work(void *call) {
    for (long number; (number = atomic_fetch_add(&next, 1)) < total;) {
        ((void (*)(long))call)(number);
        if ((number + 1) % (total / LINES) == 0) {
            pthread_mutex_lock(&printing);
            printf("%ld\n", resident_kilobytes());
            pthread_mutex_unlock(&printing);
        }
    }
    return NULL;
}

static void work_together(void (*call)(long)) {
    pthread_t callers[CALLERS];

    for (int i = 0; i < CALLERS; i++)
        CHECK(pthread_create(&callers[i], NULL, work, (void *)call) == 0);
    for (int i = 0; i < CALLERS; i++)
        CHECK(pthread_join(callers[i], NULL) == 0);
}

static void load_again_and_again(const char *root) {
    semantic_error error = SEMANTIC_ERROR_INIT;
    semantic_text texts[3] = {text_of(2), text_of(60), text_of(500)};

    for (long cycle = 0; cycle < total; cycle++) {
        load_all(root);
        for (int which = 0; which < MODELS; which++)
            ask(which, texts, 3, NULL);
        for (int which = 0; which < MODELS; which++)
            CHECK_OK(semantic_unload_model(models[which], 5000, &error), &error);
        printf("%ld\n", resident_kilobytes());
    }
}

/* The base goes with its last adapter, and comes again with the next first one. */
static void load_adapters(const char *root) {
    static const char *const names[MODELS] = {"domain", "guard", "domain", "guard"};
    semantic_error error = SEMANTIC_ERROR_INIT;
    semantic_text text = text_of(60);
    char path[4096], name[32];

    for (long cycle = 0; cycle < total; cycle++) {
        for (int which = 0; which < MODELS; which++) {
            semantic_load_options options = SEMANTIC_LOAD_OPTIONS_INIT;

            snprintf(name, sizeof name, "adapter %d", which);
            snprintf(path, sizeof path, "%s/modernbert-lora-base/adapters/%s", root, names[which]);
            options.name = name;
            options.adapter_mode = which < 3 ? SEMANTIC_ADAPTER_SHARED : SEMANTIC_ADAPTER_MERGED;
            CHECK_OK(semantic_load_model(path, &options, &models[which], &error), &error);
        }
        for (int which = 0; which < MODELS; which++) {
            const semantic_classification *classes;

            CHECK_OK(semantic_classify(models[which], &text, 1, NULL, &classes, &error), &error);
            CHECK(classes->label_count == (which % 2 ? 2 : 7));
            semantic_free(classes);
        }
        for (int which = 0; which < MODELS; which++)
            CHECK_OK(semantic_unload_model(models[which], 5000, &error), &error);
        printf("%ld\n", resident_kilobytes());
    }
}

static pthread_barrier_t ready;

static void *one_of_many(void *argument) {
    long number = (long)argument;
    semantic_text text = text_of(100); /* so much work that all come before many can leave */

    pthread_barrier_wait(&ready);
    ask((int)(number % 3), &text, 1, NULL);
    return NULL;
}

static void gather_crowds(void) {
    const struct timespec rest = {0, 300000000};
    pthread_t *callers = calloc((size_t)total, sizeof *callers);

    CHECK(callers != NULL);
    for (int wave = 0; wave < 3; wave++) {
        CHECK(pthread_barrier_init(&ready, NULL, (unsigned)total) == 0);
        for (long i = 0; i < total; i++)
            CHECK(pthread_create(&callers[i], NULL, one_of_many, (void *)i) == 0);
        for (long i = 0; i < total; i++)
            CHECK(pthread_join(callers[i], NULL) == 0);
        pthread_barrier_destroy(&ready);
        nanosleep(&rest, NULL);
        ask(SEQUENCE, (semantic_text[]){text_of(3)}, 1, NULL);
        malloc_trim(0); /* glibc keeps what 2,000 threads have freed for as many again */
        printf("%d %ld\n", threads(), resident_kilobytes());
    }
    free(callers);
}

int main(int argc, char **argv) {
    semantic_error error = SEMANTIC_ERROR_INIT;
    const semantic_stats *stats;

    CHECK(argc == 4);
    total = strtol(argv[2], NULL, 10);
    CHECK(total > 0);
    for (size_t i = 0; i < sizeof words; i++)
        words[i] = "math "[i % 5];
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (strcmp(argv[1], "loads") == 0) {
        load_again_and_again(argv[3]);
    } else if (strcmp(argv[1], "adapters") == 0) {
        load_adapters(argv[3]);
    } else {
        load(argv[3], SEQUENCE, "closed soon"); /* handle 1 */
        CHECK_OK(semantic_unload_model(models[SEQUENCE], 0, &error), &error);
        load_all(argv[3]);
        if (strcmp(argv[1], "calls") == 0)
            work_together(mixed_call);
        else if (strcmp(argv[1], "failures") == 0)
            work_together(failing_call);
        else
            gather_crowds();
    }
    CHECK_OK(semantic_get_stats(&stats, &error), &error);
    CHECK(stats->results_unfreed == 0 && stats->results_unfreed_bytes == 0);
    for (size_t i = 0; i < stats->call_count; i++)
        CHECK(stats->in_flight[i] == 0);
    semantic_free(stats);
    CHECK_OK(semantic_cleanup(5000, &error), &error);
    return 0;
}
