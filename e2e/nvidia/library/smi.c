/* A stand-in for nvidia-smi, as far as mig-parted and NVIDIA's DRA driver call it: `-r` resets every card; all else says nothing. */
#include <stdio.h>
#include <string.h>

int standInReset(void);

int main(int count, char **words)
{
    if (count < 2 || strcmp(words[1], "-r"))
        return 0;
    int refused = standInReset();
    puts(refused ? "a card is in use by another client, or cannot be reset" : "all cards were reset");
    return refused;
}
