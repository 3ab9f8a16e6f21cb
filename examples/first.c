/* Find the entities in a sentence with a token classifier.
 *
 *     cc first.c $(pkg-config --cflags --libs semantic) -o first
 *     ./first MODEL_FOLDER
 */
#include <semantic.h>

#include <stdio.h>
#include <string.h>

static int failed(const char *what, const semantic_error *error) {
    fprintf(stderr, "%s: %s: %s\n", what, semantic_status_name(error->status), error->message);
    return 1;
}

int main(int argc, char **argv) {
    const char *sentence = "I am Sarah Connor, write to sarah@example.org";
    semantic_text text = {sentence, strlen(sentence)};
    semantic_error error = SEMANTIC_ERROR_INIT;
    const semantic_token_classification *found;
    semantic_model model;

    if (argc != 2) {
        fprintf(stderr, "usage: first MODEL_FOLDER (a token classifier)\n");
        return 2;
    }
    if (semantic_load_model(argv[1], NULL, &model, &error) != SEMANTIC_OK)
        return failed("cannot load the model", &error);
    if (semantic_classify_tokens(model, &text, 1, NULL, &found, &error) != SEMANTIC_OK)
        return failed("cannot find entities", &error);

    for (size_t i = 0; i < found->item_count; i++) {
        long long start = found->start[i], end = found->end[i]; /* bytes of the sentence */
        printf("%-20.*s %-12s %.2f  bytes %lld to %lld\n", (int)(end - start), sentence + start,
               found->labels[found->label_index[i]].data, found->score[i], start, end);
    }

    semantic_free(found);
    if (semantic_unload_model(model, 1000, &error) != SEMANTIC_OK)
        return failed("cannot unload the model", &error);
    if (semantic_cleanup(1000, &error) != SEMANTIC_OK)
        return failed("cannot clean up", &error);
    return 0;
}
